"""Define the tasks of a cluster, and what happens when a task dies."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal

CHIEF, PS, WORKER, EVALUATOR = "chief", "ps", "worker", "evaluator"
TRAINING_TYPES = (CHIEF, PS, WORKER)

Resume = Literal["auto", "never", "always"]
"""The values of `ps-cluster task --resume`, which says whether training continues from a checkpoint or snapshot.

"auto": if the run has a checkpoint or snapshot, training continues from it; otherwise training begins at step 0.
"always": the task fails if the run has neither. "never": the task fails if the run has a checkpoint or snapshot.
"""


@dataclass(frozen=True, order=True)
class Task:
    """One process of a run, e.g. `worker-2`."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}-{self.index}"


def leader_type(types: Container[str]) -> str:
    """Return the task type of the leader, which writes checkpoints and results: the chief, or else worker 0.

    Args:
      types: the task types of the cluster.
    """
    return CHIEF if CHIEF in types else WORKER


@dataclass(frozen=True)
class OnDeath:
    """The reaction to the unexpected end of a task.

    Attributes:
      restarts: the task is restarted at most this many times in a row.
      restarts_whole_cluster: whether all training tasks restart together with the task, from the newest snapshot.
      dispensable: whether the run continues without the task once it has used up its restarts. A worker or ps is
        dispensable only while there is another one.
    """

    restarts: int
    restarts_whole_cluster: bool
    dispensable: bool


OnDeaths = Mapping[str, OnDeath]  # by task type

ON_DEATH: OnDeaths = {
    CHIEF: OnDeath(restarts=5, restarts_whole_cluster=True, dispensable=False),
    PS: OnDeath(restarts=5, restarts_whole_cluster=True, dispensable=True),
    WORKER: OnDeath(restarts=5, restarts_whole_cluster=False, dispensable=True),
    EVALUATOR: OnDeath(restarts=3, restarts_whole_cluster=False, dispensable=True),
}
# For a worker if the other workers can't continue without it.
WITH_ALL_WORKERS = OnDeath(restarts=5, restarts_whole_cluster=True, dispensable=False)
