"""The learning rate as a pure function of the step id; the schedules are one file each, and a new one is found by itself."""

from __future__ import annotations

import math

from ps_cluster.config.modes import SCHEDULES, Schedule, ScheduleSettings
from ps_cluster.config.registry import tf


def schedule_factor(settings: ScheduleSettings, step: tf.Tensor, total_steps: int) -> tf.Tensor:
    """Return the factor of the peak learning rate at `step` (int64 [], from 0), float32 [].

    It rises linearly from `start_factor` over the warm-up. From there to the last step the schedule gives it.
    """
    progress = tf.cast(step, tf.float32) / max(1, total_steps - 1)
    warmup = settings.warmup_fraction
    rising = settings.start_factor + (1 - settings.start_factor) * progress / max(warmup, 1e-9)
    past = tf.clip_by_value((progress - warmup) / max(1 - warmup, 1e-9), 0.0, 1.0)
    after = SCHEDULES[settings.kind].after_warmup(settings, past)
    return tf.where(progress < warmup, rising, after)


# Schedule constant.


class Constant(Schedule):
    name = "constant"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return 1."""
        return tf.ones_like(past)


CONSTANT = Constant()


# Schedule cosine.


class Cosine(Schedule):
    name = "cosine"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls from 1 to `end_factor` along half a cosine.

        Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5.
        """
        return settings.end_factor + (1 - settings.end_factor) * (1 + tf.cos(math.pi * past)) / 2


COSINE = Cosine()


# Schedule triangle.


class Triangle(Schedule):
    name = "triangle"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls linearly from 1 to `end_factor`."""
        return 1 - (1 - settings.end_factor) * past


TRIANGLE = Triangle()
