"""Set the order of operations in a graph. Between devices, TensorFlow keeps no order that is not set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ps_cluster.config.lazy import tf

Dependency: TypeAlias = "tf.Tensor | tf.Operation | tf.Variable"
"""Something in a graph after which something else may run."""
Needed: TypeAlias = "Sequence[Dependency]"
"""Everything that has to be done before something else runs."""


def after(needed: Needed, value: tf.Tensor | int) -> tf.Tensor:
    """Return `value`, which is available only once everything `needed` is done."""
    with tf.control_dependencies(needed):
        return tf.identity(value)


def now_after(*needed: Dependency) -> tf.Tensor:
    """Return the time at which everything `needed` is done, float64 [], unix seconds."""
    with tf.control_dependencies(needed):
        return tf.timestamp()
