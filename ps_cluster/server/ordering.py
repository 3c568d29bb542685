"""Decide in a graph what runs after what. TensorFlow keeps no other order between operations on different devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ps_cluster.config.lazy import tf


def after(needed: Sequence[Any], value: tf.Tensor | int) -> tf.Tensor:
    """Return `value` once everything `needed` is done."""
    with tf.control_dependencies(needed):
        return tf.identity(value)


def now_after(*needed: Any) -> tf.Tensor:
    """Return the time when everything `needed` is done, float64 [], unix seconds."""
    with tf.control_dependencies(needed):
        return tf.timestamp()
