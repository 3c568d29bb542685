"""Mistakes that a proof has to find: each function patches the training code of its own process."""

import tensorflow as tf

from ps_cluster.server.shard import ParameterShard, after

STEP = 50  # the step at which the mistake is made


def applies_twice() -> None:
    apply = ParameterShard.apply_gradient

    def apply_gradient(self, *gradient):
        with tf.control_dependencies([apply(self, *gradient)]):
            return apply(self, *gradient)

    ParameterShard.apply_gradient = apply_gradient


def applies_without_a_row() -> None:
    record = ParameterShard._record

    def none_of_one(self, push, *known):
        return tf.cond(push.step == STEP, lambda: 0, lambda: after([record(self, push, *known)], 0)).op

    ParameterShard._record = none_of_one


MISTAKES = {
    mistake.__name__: mistake
    for mistake in (
        applies_twice,
        applies_without_a_row,
    )
}
