"""The learning rate as a pure function of the step id; the schedules are one file each, and a new one is found by itself."""

from __future__ import annotations

from ps_cluster.catalogue.lazily import tf
from ps_cluster.catalogue.schedules import SCHEDULES, ScheduleSettings


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
