"""The signs which show that a run has recovered from a fault."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ps_cluster.config.tasks import WORKER, Task
from ps_cluster.runs.result_rows import ProgressRow

Pids = Mapping[Task, int]
"""The pid of each task whose process runs."""


class Sign(ABC):
    """A sign that a run has recovered from a fault."""

    missing = ""  # what is reported if the sign never comes
    seen_at: float | None = None  # monotonic seconds; None as long as the sign has not come

    @abstractmethod
    def seen(self, rows: Sequence[ProgressRow], running: Pids, now: float) -> float | None:
        """Return the time at which the sign came, in monotonic seconds; None if it has not come.

        `rows`: the progress rows since the last call. `running`: the tasks that run now. `now`: monotonic seconds.
        """


class TrainingBack(Sign):
    """Sign of recovery: a chief that started after the fault has applied updates beyond those that it restored."""

    missing = "no update by a new chief"

    def __init__(self, fault_time: float):
        self._fault_time = fault_time
        self._restored: int | None = None

    def seen(self, rows: Sequence[ProgressRow], running: Pids, now: float) -> float | None:
        for row in rows:
            if row.monotonic <= self._fault_time:
                continue
            if row.phase == "connecting":  # Every chief writes this row first.
                self._restored = row.applied
            elif row.phase == "training" and self._restored is not None and row.applied > self._restored:
                return row.monotonic
        return None


class TrainingContinues(Sign):
    """Sign of recovery: a progress row counts more updates than the row before it, both written after the fault."""

    def __init__(self, since: float, until: float = math.inf, of: Task | None = None):
        """Create a sign of recovery that considers the progress rows between `since` and `until`, in monotonic seconds.

        `of`: the task that the fault has hit. If it is a worker, only the updates of this worker count.
        """
        self._worker = of if of is not None and of.type == WORKER else None
        self.missing = f"no update by {self._worker}" if self._worker else "no update"
        self._since, self._until = since, until
        self._before: int | None = None

    def seen(self, rows: Sequence[ProgressRow], running: Pids, now: float) -> float | None:
        for row in rows:
            if not self._since < row.monotonic < self._until:
                continue
            count = row.applied
            if self._worker:
                count = sum(worker.updates for worker in row.workers if worker.index == self._worker.index)
            if self._before is not None and count > self._before:
                return row.monotonic
            self._before = count
        return None


class WorkerBack(Sign):
    """Sign of recovery: the new process of a restarted worker has applied an update."""

    def __init__(self, worker: Task, known_pids: set[int]):
        self.missing = f"no update by a new process of {worker}"
        self._index = worker.index
        self._known = known_pids

    def seen(self, rows: Sequence[ProgressRow], running: Pids, now: float) -> float | None:
        return next((row.monotonic for row in rows if worker_pids(row, self._index) - self._known), None)


class Condition(Sign):
    """Sign of recovery: the running tasks meet a condition."""

    def __init__(self, missing: str, holds: Callable[[Pids], bool]):
        self.missing, self._holds = missing, holds

    def seen(self, rows: Sequence[ProgressRow], running: Pids, now: float) -> float | None:
        return now if self._holds(running) else None


def new_snapshot(folder: Path) -> Sign:
    """Return a sign of recovery: the folder has a new snapshot."""
    pattern = "*.safetensors"
    known = set(folder.glob(pattern))
    return Condition(f"no new file in '{folder}'", lambda _: bool(set(folder.glob(pattern)) - known))


def new_process(task: Task, old_pid: int) -> Sign:
    """Return a sign of recovery: `task` runs in a process other than `old_pid`."""
    return Condition(f"no new process of {task}", lambda running: running.get(task, old_pid) != old_pid)


def worker_pids(row: ProgressRow, index: int) -> set[int]:
    """Return the pids of all processes of worker `index` that have at least one update counted in `row`."""
    return {worker.pid for worker in row.workers if worker.index == index and worker.updates}
