"""The types of tasks that a cluster is made of, and what follows when one ends that should not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHIEF, PS, WORKER, EVALUATOR = "chief", "ps", "worker", "evaluator"
TRAINING_TYPES = (CHIEF, PS, WORKER)


@dataclass(frozen=True)
class OnDeath:
    """What happens when a task ends that should not: it is started again, at most `restarts` times in a row."""

    restarts: int
    whole_cluster: bool  # all training tasks start again with it, from the newest snapshot
    dispensable: bool  # given up, the run goes on without it; a worker only while there are others


OnDeaths = Mapping[str, OnDeath]  # by the type of the task

ON_DEATH: OnDeaths = {
    CHIEF: OnDeath(restarts=5, whole_cluster=True, dispensable=False),
    PS: OnDeath(restarts=5, whole_cluster=True, dispensable=False),
    WORKER: OnDeath(restarts=5, whole_cluster=False, dispensable=True),
    EVALUATOR: OnDeath(restarts=3, whole_cluster=False, dispensable=True),
}
