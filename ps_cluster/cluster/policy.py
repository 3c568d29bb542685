"""A table of the launcher's time limits. What follows from a death is in catalogue/task_types.py and the modes."""

from __future__ import annotations

from dataclasses import dataclass

from ps_cluster.config import RunConfig


@dataclass(frozen=True)
class Limits:
    """The launcher's time limits, in seconds. Only time in which the launcher ran counts (ps_cluster/clock.py)."""

    look_every_s: float = 0.2
    startup_s: float = 180.0  # until training begins
    standstill_s: float = 60.0  # without a new update
    frozen_s: float = 5.0  # a process that is stopped (SIGSTOP) for longer counts as dead
    silent_s: float = (
        10.0  # minimum time without an update, while others have some, for a worker to be silent; more for long steps
    )
    first_update_s: float = 60.0  # until a worker process's first update: it connects and builds its graph before
    kill_s: float = 10.0  # from SIGKILL until a task whose process is still there is given up
    stable_s: float = 20.0  # a worker or evaluator that lived longer than this did not die "in a row"
    backoff_s: float = 0.5  # before the second restart in a row; doubled for each further one
    longest_backoff_s: float = 10.0
    drain_s: float = 120.0  # from the first Ctrl-C, or an update after it, to the next one or the end of training
    scoring_s: float = 300.0  # for each checkpoint to be scored, once training is over
    grace_s: float = 5.0  # from SIGTERM to SIGKILL
    port_attempts: int = 5

    @classmethod
    def of(cls, config: RunConfig) -> Limits:
        """Return the limits of a run. Waits for an update are longer where a single update may take long."""
        standstill_s = max(cls.standstill_s, config.longest_update_seconds)
        # In mode sync the first row of training comes only after the first updates.
        startup_s = cls.startup_s + config.longest_update_seconds
        first_update_s = cls.first_update_s + config.longest_update_seconds
        return cls(
            startup_s=startup_s, standstill_s=standstill_s, first_update_s=first_update_s, drain_s=2 * standstill_s
        )
