"""What the launcher does, and how long it waits, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ps_cluster.cluster.topology import CHIEF, EVALUATOR, PS, WORKER
from ps_cluster.config import RunConfig


@dataclass(frozen=True)
class OnDeath:
    """What happens when a task ends that should not: it is started again, at most `restarts` times in a row."""

    restarts: int
    whole_cluster: bool  # all training tasks start again with it, from the newest snapshot
    dispensable: bool  # given up, the run goes on without it; a worker only while there are others


OnDeaths = Mapping[str, OnDeath]  # by the type of the task

ON_DEATH = {
    CHIEF: OnDeath(restarts=5, whole_cluster=True, dispensable=False),
    PS: OnDeath(restarts=5, whole_cluster=True, dispensable=False),
    WORKER: OnDeath(restarts=5, whole_cluster=False, dispensable=True),
    EVALUATOR: OnDeath(restarts=3, whole_cluster=False, dispensable=True),
}
_ON_DEATH_IN_MODE: Mapping[str, OnDeaths] = {
    # Each all-reduce waits for every worker, and the strategy takes no new one in the place of one that died.
    "sync": ON_DEATH | {WORKER: OnDeath(restarts=5, whole_cluster=True, dispensable=False)},
    # A round has a place for every worker and would wait for one that never comes again.
    "sync-ps": ON_DEATH | {WORKER: OnDeath(restarts=5, whole_cluster=False, dispensable=False)},
}


def on_death(mode: str) -> OnDeaths:
    """The table for a `training.mode`."""
    return _ON_DEATH_IN_MODE.get(mode, ON_DEATH)


@dataclass(frozen=True)
class Limits:
    """The bound of every wait of the launcher. Only time in which the launcher itself ran counts (ps_cluster/clock.py)."""

    look_every_s: float = 0.2
    startup_s: float = 180.0  # until training begins
    standstill_s: float = 60.0  # between two looks that see a new update
    frozen_s: float = 5.0  # a process that is stopped (SIGSTOP) for longer is dead
    silent_s: float = (
        10.0  # a worker without an update while others have some, at least; more where its steps take long
    )
    first_update_s: float = 60.0  # of a worker process: it connects and builds its graph first
    kill_s: float = 10.0  # from SIGKILL until a process that is still there is given up
    stable_s: float = 20.0  # a worker or evaluator that lived longer than this did not die "in a row"
    backoff_s: float = 0.5  # before the second restart in a row; doubled for each further one
    longest_backoff_s: float = 10.0
    drain_s: float = 120.0  # from the first Ctrl-C, or an update after it, to the next one or the end of training
    scoring_s: float = 300.0  # between two checkpoints scored, once training is over
    grace_s: float = 5.0  # from TERM to KILL
    port_attempts: int = 5

    @classmethod
    def of(cls, config: RunConfig) -> Limits:
        """Those of a run: what waits for an update waits for longer where a single one may take that long."""
        standstill_s = max(cls.standstill_s, config.longest_update_seconds)
        # In mode sync training is only heard of when its first updates are done.
        startup_s = cls.startup_s + config.longest_update_seconds
        first_update_s = cls.first_update_s + config.longest_update_seconds
        return cls(
            startup_s=startup_s, standstill_s=standstill_s, first_update_s=first_update_s, drain_s=2 * standstill_s
        )
