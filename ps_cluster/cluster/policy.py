"""A table of the launcher's time limits. What follows from a death is in catalogue/task_types.py and the modes."""

from __future__ import annotations

from dataclasses import dataclass, replace


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

    def for_waits_of(self, seconds: float) -> Limits:
        """Return these limits where an update may take so long, as the leader tells in its rows."""
        return replace(
            self,
            standstill_s=max(self.standstill_s, seconds),
            first_update_s=self.first_update_s + seconds,
            drain_s=max(self.drain_s, 2 * seconds),
        )
