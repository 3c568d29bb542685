"""Define mistakes that the proof of a run has to find. Each is a context in which training makes only that mistake."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

import tensorflow as tf

from ps_cluster.data import augment, batches
from ps_cluster.models.heads import ClassificationHead
from ps_cluster.server.ordering import after
from ps_cluster.server.shard import ParameterShard
from ps_cluster.server.table_shard import TableShard
from ps_cluster.server.update_rules.rule import UpdateRule
from ps_cluster.server.version_history import VersionHistory
from ps_cluster.training.modes.elastic import ElasticShard
from ps_cluster.training.modes.outer_steps import DelayedNesterov
from ps_cluster.training.split_step import SplitStep
from ps_cluster.training.step import StepResult, TrainBatch, TrainStep
from ps_cluster.training.worker_state import ErrorFeedback

STEP = 10  # the step of those mistakes that are made only once

Mistake = Callable[[], AbstractContextManager[object]]
MISTAKES: dict[str, Mistake] = {}


def _changes(*indices: tuple[object, str]) -> Callable[[Callable], Callable]:
    """Register a mistake: a function that replaces the methods at `indices`, and gets the right method first."""

    def register(wrong: Callable) -> Callable:
        @contextmanager
        def mistaken() -> Iterator[None]:
            with ExitStack() as stack:
                for owner, name in indices:
                    stack.enter_context(mock.patch.object(owner, name, _with_right(getattr(owner, name), wrong)))
                yield

        MISTAKES[wrong.__name__.replace("_", " ")] = mistaken
        return wrong

    return register


def _with_right(right: Callable, wrong: Callable) -> Callable:
    """Return a function or method that calls `wrong` with `right` before its own arguments."""

    def method(*arguments, **named):
        return wrong(right, *arguments, **named)

    return method


# What a worker computes.


def _changed(results, change):
    """Change the result of a step, or the results of all parts of a split step."""
    return change(results) if isinstance(results, StepResult) else list(map(change, results))


@_changes((batches, "batch_of"))
def every_step_trains_on_the_examples_of_step_0(right, step, **named):
    return right(tf.zeros_like(step), **named)


@_changes((batches, "packed_examples"))
def the_examples_are_not_those_of_their_ids(right, batch, *arguments):
    return right(replace(batch, ids=tf.roll(batch.ids, 1, axis=0) * 0 + tf.reduce_min(batch.ids)), *arguments)


@_changes((TrainStep, "batch"))
def half_of_each_batch_is_used(right, self, step, *packed):
    inputs, targets, weights, ids = right(self, step, *packed)
    half = ids.shape[0] // 2
    some = {name: rows[:half] for name, rows in inputs.items()}
    return TrainBatch(some, targets[:half], None if weights is None else weights[:half], ids[:half])


@_changes((TrainStep, "__call__"), (SplitStep, "by_parts"))
def the_sign_of_the_gradient_is_wrong(right, *arguments, **named):
    return _changed(right(*arguments, **named), lambda result: result._replace(gradient=-result.gradient))


@_changes((TrainStep, "__call__"), (SplitStep, "by_parts"))
def the_statistics_of_a_batch_are_not_pushed(right, *arguments, **named):
    return _changed(right(*arguments, **named), lambda result: result._replace(fresh=tf.zeros_like(result.fresh)))


@_changes((augment, "augment"))
def nothing_is_augmented(right, inputs, *arguments):
    return dict(inputs)


@_changes((ClassificationHead, "weights"))
def an_example_weighs_too_much_in_the_loss(right, self, targets, given):
    weights = right(self, targets, given)
    return tf.concat([3 * weights[:1], weights[1:]], axis=0)


@_changes((ErrorFeedback, "__call__"))
def what_a_push_leaves_out_is_lost(right, self, step, gradient):
    sent = right(self, step, gradient)
    return sent._replace(settle=lambda outcomes: [])


# What a parameter server does.


@_changes((ParameterShard, "_change_weights"))
def three_times_the_learning_rate_is_applied(right, self, gradient):
    return right(self, gradient._replace(learning_rate=3 * gradient.learning_rate))


@_changes((UpdateRule, "apply"))
def the_kernel_of_the_optimizer_never_runs(right, self, *arguments):
    return tf.no_op()


@_changes((ParameterShard, "update_statistics"))
def the_moving_statistics_are_lost(right, self, fresh):
    return tf.no_op()


@_changes((VersionHistory, "read"))
def stale_weights_are_given_as_new_ones(right, self, version):
    if not hasattr(self, "stale"):
        with tf.init_scope():
            self.stale = [tf.Variable(vector) for vector in self._vectors]
    (_, version) = right(self, version)
    return [vector.read_value() for vector in self.stale], version


@_changes((ElasticShard, "change"))
def the_centre_of_elastic_moves_too_far(right, self, push, arrival, factor):
    rate = self._moving_rate
    self._moving_rate = 3 * rate
    try:
        return right(self, push, arrival, factor)
    finally:
        self._moving_rate = rate


@_changes((DelayedNesterov, "used_rate"))
def the_outer_rate_of_diloco_is_wrong(right, self, learning_rate):
    return 0.5 * right(self, learning_rate)


@_changes((ParameterShard, "apply_gradient"))
def an_update_is_applied_twice(right, self, *arguments):
    with tf.control_dependencies([right(self, *arguments)]):
        return right(self, *arguments)


@_changes((TableShard, "apply"))
def one_of_a_hundred_rows_is_not_updated(right, self, indices, gradient):
    chosen = tf.not_equal(indices % 100, 1)
    of_rows = tf.boolean_mask(tf.reshape(gradient.values, [-1, self.width]), chosen)
    return right(self, tf.boolean_mask(indices, chosen), gradient._replace(values=of_rows))


@_changes((TableShard, "apply"))
def the_gradients_of_two_rows_are_exchanged(right, self, indices, gradient):
    return right(self, tf.concat([indices[:2][::-1], indices[2:]], 0), gradient)


@_changes((TableShard, "read"))
def rows_of_other_indices_are_given(right, self, indices, dtype):
    return right(self, tf.roll(indices, 1, 0), dtype)


@_changes((TableShard, "read"))
def rows_of_an_old_version_are_given(right, self, indices, dtype):
    if not hasattr(self, "stale"):
        with tf.init_scope():
            self.stale = tf.Variable(self.rows)
    return tf.reshape(tf.cast(tf.gather(self.stale, indices), dtype), [-1])


@_changes((ParameterShard, "record"))
def an_update_has_no_row(right, self, push, *known):
    return tf.cond(push.step == STEP, lambda: 0, lambda: after([right(self, push, *known)], 0)).op


@_changes((ParameterShard, "update_statistics"))
def one_exponent_bit_of_a_weight_flips(right, self, fresh):
    def flip() -> tf.Tensor:
        bits = tf.bitcast(self.weights.sparse_read([0]), tf.int32)
        flipped = tf.bitcast(tf.bitwise.bitwise_xor(bits, 1 << 24), tf.float32)
        return after([self.weights.scatter_update(tf.IndexedSlices(flipped, [0]))], 0)

    return tf.group(right(self, fresh), tf.cond(tf.equal(self.version, STEP), flip, lambda: 0))
