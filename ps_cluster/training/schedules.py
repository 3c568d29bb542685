"""The schedules of the learning rate, as pure functions of the progress after the warm-up.

The launcher imports this module, so it does not import TensorFlow before a graph is built.
"""

from __future__ import annotations

import math

from ps_cluster.config.lazy import tf
from ps_cluster.config.schedules import Schedule, ScheduleSettings


class Constant(Schedule):
    name = "constant"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return 1."""
        return tf.ones_like(past)


class Cosine(Schedule):
    name = "cosine"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls from 1 to `end_factor` along half a cosine.

        Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5.
        """
        return settings.end_factor + (1 - settings.end_factor) * (1 + tf.cos(math.pi * past)) / 2


class Triangle(Schedule):
    name = "triangle"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls linearly from 1 to `end_factor`."""
        return 1 - (1 - settings.end_factor) * past
