"""Schedule triangle."""

from __future__ import annotations

from ps_cluster.catalogue.lazily import tf
from ps_cluster.catalogue.schedules import Schedule, ScheduleSettings


class Triangle(Schedule):
    name = "triangle"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls linearly from 1 to `end_factor`."""
        return 1 - (1 - settings.end_factor) * past


TRIANGLE = Triangle()
