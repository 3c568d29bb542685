"""Schedule cosine."""

from __future__ import annotations

import math

from ps_cluster.catalogue.lazily import tf
from ps_cluster.catalogue.schedules import Schedule, ScheduleSettings


class Cosine(Schedule):
    name = "cosine"

    def after_warmup(self, settings: ScheduleSettings, past: tf.Tensor) -> tf.Tensor:
        """Return the factor that falls from 1 to `end_factor` along half a cosine.

        Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5.
        """
        return settings.end_factor + (1 - settings.end_factor) * (1 + tf.cos(math.pi * past)) / 2


COSINE = Cosine()
