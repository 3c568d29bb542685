"""Set the order of operations in a graph. Between devices, TensorFlow keeps only an order that is set explicitly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ps_cluster.config.lazy import tf

Dependency: TypeAlias = "tf.Tensor | tf.Operation | tf.Variable"
"""A tensor, an operation or a variable. Operations of a graph can be ordered to run after it."""
Needed: TypeAlias = "Sequence[Dependency]"
"""The dependencies that must complete before another operation runs."""


def after(needed: Needed, value: tf.Tensor | int) -> tf.Tensor:
    """Return `value`, which is available only once everything `needed` is done."""
    with tf.control_dependencies(needed):
        return tf.identity(value)


def now_after(*needed: Dependency) -> tf.Tensor:
    """Return the time at which everything `needed` is done, float64 [], unix seconds."""
    with tf.control_dependencies(needed):
        return tf.timestamp()
