"""Schedule constant."""

from __future__ import annotations

from ps_cluster.catalogue.lazily import tf
from ps_cluster.catalogue.schedules import Schedule, ScheduleSettings


class Constant(Schedule):
    name = "constant"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return 1."""
        return tf.ones_like(past)


CONSTANT = Constant()
