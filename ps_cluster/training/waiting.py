"""Order and waiting inside a graph. TensorFlow has no operation that sleeps, but a dataset that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

# Each look takes some 0.3 to 0.5 ms of processor time in the worker, and as much in the parameter server: not more often.
LOOK_EVERY_S = 0.002


def after(needed: Sequence, value: tf.Tensor | int) -> tf.Tensor:
    """`value`, once everything `needed` is done."""
    with tf.control_dependencies(needed):
        return tf.identity(value)


def now_after(*needed) -> tf.Tensor:
    """float64 []: unix seconds at the moment when everything `needed` is there."""
    with tf.control_dependencies(needed):
        return tf.timestamp()


def sleep(seconds: tf.Tensor) -> tf.Tensor:
    """Waits `seconds` (float64 []) without using a processor. Returns a tensor to depend on."""
    # Taking the only element of a dataset asks it twice, the second time for its end, and it sleeps both times.
    microseconds = tf.cast(tf.maximum(seconds, 0.0) * 1e6 / 2, tf.int64)
    element = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
    slow = tf.raw_ops.SleepDataset(
        input_dataset=element, sleep_microseconds=microseconds, output_types=[tf.int32], output_shapes=[[]]
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=slow, output_types=[tf.int32], output_shapes=[[]])[0]


def repeat_while(value: int, attempt: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Makes the attempt (a tensor of `value`'s dtype) again and again, with pauses, as long as it comes to `value`.

    The launcher bounds it: a training that stands still is ended.
    """

    def again(_: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([sleep(tf.constant(LOOK_EVERY_S, tf.float64))]):
            return attempt()

    return tf.while_loop(lambda outcome: tf.equal(outcome, value), again, [attempt()], parallel_iterations=1)[0]
