"""Define the time limits of a run and the clocks that check them: one for its stage, and one for frozen processes.

The launcher of a whole run (decisions.py) and the command `task` (one_task_decisions.py) check their limits with these clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from ps_cluster.config.tasks import Task
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.runs.training_phases import BEGUN


@dataclass(frozen=True)
class RunLimits:
    """Time limits in seconds. They do not count time in which the process that checks them is stopped (clock.py)."""

    poll_interval_s: float = 0.2  # between two rounds of the event loop
    startup_s: float = 180.0  # until training begins
    standstill_s: float = 60.0  # without a new update
    frozen_s: float = 5.0  # a process that is stopped (SIGSTOP) for longer counts as dead
    # A worker is silent after this time without an update, while others have some; longer if its steps are long.
    silent_s: float = 10.0
    first_update_s: float = 60.0  # for a worker process to connect, build its graph and make its first update
    kill_s: float = 10.0  # from SIGKILL until a task whose process is still there is given up
    stable_s: float = 20.0  # a worker or evaluator that lived longer than this begins a new streak of deaths
    # Before the first, second, … restart of a streak; the last delay is that of all further restarts.
    restart_delays_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0)
    drain_s: float = 120.0  # from the first Ctrl-C, or an update after it, to the next update or the end of training
    scoring_s: float = 300.0  # for each checkpoint to be scored, once training is over
    grace_s: float = 5.0  # from SIGTERM to SIGKILL
    port_attempts: int = 5

    def for_waits_of(self, seconds: float) -> RunLimits:
        """Return larger limits, for a run whose leader has reported that a single update may take `seconds`."""
        return replace(
            self,
            standstill_s=max(self.standstill_s, seconds),
            first_update_s=self.first_update_s + seconds,
            drain_s=max(self.drain_s, 2 * seconds),
        )


class RunStage(Enum):
    """A stage of a run. The order is starting → training (→ draining) → scoring.

    A restart of all training tasks leads back to starting.
    """

    STARTING = "starting"
    TRAINING = "training"
    DRAINING = "draining"
    SCORING = "scoring"


class StageClock:
    """A clock that measures for how long a run has made no progress in its present stage.

    In the stages "training" and "draining", each update, each save, and each ledger row that is read after the training
    counts as progress. In the stage "scoring", each score and any other work of the evaluator counts as progress.
    `limits`: the present time limits. They grow with `longest_wait_seconds`, which the leader reports in its progress
    rows.
    """

    def __init__(self, limits: RunLimits, now_s: float):
        self._limits = self.limits = limits
        self._seen = (-1, 0)  # updates applied, rows of the ledger's tables written
        self.enter(RunStage.STARTING, now_s)

    def enter(self, stage: RunStage, now_s: float) -> None:
        self.stage, self._moved_s = stage, now_s

    def restart(self, now_s: float) -> None:
        """Restart the time limit of the stage, because the run has made progress."""
        self._moved_s = now_s

    @property
    def under_way(self) -> bool:
        """True while updates are expected."""
        return self.stage in (RunStage.TRAINING, RunStage.DRAINING)

    def record_row(self, row: ProgressRow, now_s: float) -> bool:
        """Read a progress row from the leader. Return whether training begins with it."""
        self.limits = self._limits.for_waits_of(row.longest_wait_seconds)
        begins = self.stage is RunStage.STARTING and row.phase in BEGUN
        if begins:
            self.enter(RunStage.TRAINING, now_s)
        if self.under_way and ((row.applied, row.written) != self._seen or row.phase == "saving"):
            self._seen = row.applied, row.written
            self.restart(now_s)
        return begins

    def overdue(self, leader: Task, now_s: float) -> str | None:
        """Return e.g. "training did not begin for 180 s" if the time limit of the stage is exceeded, else None."""
        limit_s, message = {
            RunStage.STARTING: (self.limits.startup_s, "training did not begin"),
            RunStage.TRAINING: (self.limits.standstill_s, "training stands still: no update"),
            RunStage.DRAINING: (self.limits.drain_s, f"{leader} did not end"),
            RunStage.SCORING: (self.limits.scoring_s, "the evaluator scored nothing"),
        }[self.stage]
        return f"{message} for {limit_s:.0f} s" if now_s - self._moved_s > limit_s else None


class FrozenProcesses:
    """Detects processes that are stopped (SIGSTOP) for too long. The caller kills them, so that they can't wake up."""

    def __init__(self, limit_s: float):
        self.limit_s = limit_s
        self._since_s: dict[Task, float] = {}

    def take_overdue(self, frozen: Iterable[Task], now_s: float) -> list[Task]:
        """Return the tasks that have been stopped for the time limit, `self.limit_s` seconds, or longer.

        Args:
          frozen: all tasks that are stopped now. A task that stays stopped is returned again after the same time.
        """
        self._since_s = {task: self._since_s.get(task, now_s) for task in frozen}
        overdue = [task for task, since_s in self._since_s.items() if now_s - since_s >= self.limit_s]
        for task in overdue:
            del self._since_s[task]
        return overdue
