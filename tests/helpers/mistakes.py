"""Mistakes that a proof has to find: each function patches the training code of its own process."""

import tensorflow as tf

from ps_cluster.server.shard import APPLIED, Slice
from ps_cluster.server.waiting import after
from ps_cluster.training import chief

STEP = 50  # the step at which the mistake is made


def applies_twice() -> None:
    apply = Slice.update

    def update(self, *gradient):
        with tf.control_dependencies([apply(self, *gradient)]):
            return apply(self, *gradient)

    Slice.update = update


def changes_the_weights_twice() -> None:
    rule = chief.ParameterStore.__init__

    def init(self, *args, **kwargs):
        rule(self, *args, **kwargs)
        for part in self.slices:
            apply = part._rule.apply

            def twice(*gradient, apply=apply):
                with tf.control_dependencies([apply(*gradient)]):
                    return apply(*gradient)

            part._rule.apply = twice

    chief.ParameterStore.__init__ = init


def applies_without_a_row() -> None:
    record = Slice._record

    def none_of_one(self, push, *known):
        return tf.cond(push.step == STEP, lambda: 0, lambda: after([record(self, push, *known)], 0)).op

    Slice._record = none_of_one


def writes_a_row_without_applying() -> None:
    apply = Slice._apply

    def not_one(self, push):
        def row_alone():
            version = self._version.read_value()
            return after([self._record(push, version, version - push.version)], APPLIED)

        return tf.cond(push.step == STEP, row_alone, lambda: apply(self, push))

    Slice._apply = not_one


def forgets_a_step() -> None:
    schedule = chief.Chief._schedule

    def all_but_one(self, function, what):
        schedule(self, function, what[what != STEP])

    chief.Chief._schedule = all_but_one


MISTAKES = {
    mistake.__name__: mistake
    for mistake in (
        applies_twice,
        changes_the_weights_twice,
        applies_without_a_row,
        writes_a_row_without_applying,
        forgets_a_step,
    )
}
