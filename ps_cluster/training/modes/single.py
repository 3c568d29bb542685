"""Mode single: one process trains alone, as a baseline for the other modes."""

from __future__ import annotations

from ps_cluster.config.modes import ClusterShape, Synchrony
from ps_cluster.config.tasks import CHIEF
from ps_cluster.training.modes.base import DefaultMode


class Single(DefaultMode):
    """A mode in which one process trains alone, as a baseline for the other modes."""

    name = "single"
    description = "one process trains alone"
    cluster = ClusterShape(types=(CHIEF,), why_workers_are_fixed="it has no workers")
    synchrony = Synchrony(is_stale=False)
    has_tables = True
