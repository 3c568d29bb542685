"""Set the order of operations in a graph. Between devices, TensorFlow keeps no order that is not set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ps_cluster.config.lazy import tf


def after(needed: Sequence[Any], value: tf.Tensor | int) -> tf.Tensor:
    """Return `value`, which is available only once everything `needed` is done."""
    with tf.control_dependencies(needed):
        return tf.identity(value)


def now_after(*needed: Any) -> tf.Tensor:
    """Return the time at which everything `needed` is done, float64 [], unix seconds."""
    with tf.control_dependencies(needed):
        return tf.timestamp()
