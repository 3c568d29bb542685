"""Mode single: one process that trains by itself, as a baseline for the other modes."""

from __future__ import annotations

from ps_cluster.config.modes import CHIEF, Mode


class Single(Mode):
    name = "single"
    says = "one process trains by itself"
    tasks = (CHIEF,)
    is_stale = False
    fixed_workers = "it has none"


SINGLE = Single()
