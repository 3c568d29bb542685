"""Clip a gradient as Keras's optimizers do, by clipnorm, global_clipnorm or clipvalue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RuleSettings

Clip: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"
"""Gradient [n] → clipped gradient [n], in the same dtype."""

if TYPE_CHECKING:  # imports TensorFlow
    from ps_cluster.models.flat import FlatLayout


def clipping_of(settings: RuleSettings, layout: FlatLayout) -> Clip:
    """Return the clipping function that the settings choose; without such settings, it leaves the gradient unchanged.

    Args:
      layout: the layout of the variables in the gradient.
    """
    if (limit := settings.clip_norm) is not None:
        return partial(_by_norms, limit=limit, layout=layout)
    if (limit := settings.global_clip_norm) is not None:
        return partial(_by_norm, limit=limit)
    if (limit := settings.clip_value) is not None:
        return partial(tf.clip_by_value, clip_value_min=-limit, clip_value_max=limit)
    return lambda gradient: gradient


def _by_norms(gradient: tf.Tensor, limit: float, layout: FlatLayout) -> tf.Tensor:
    return tf.concat([_by_norm(part, limit) for part in tf.split(gradient, layout.sizes)], axis=0)


def _by_norm(vector: tf.Tensor, limit: float) -> tf.Tensor:
    # In bfloat16, a sum of squares would stop growing after some hundred squares.
    return tf.cast(tf.clip_by_norm(tf.cast(vector, tf.float32), limit), vector.dtype)
