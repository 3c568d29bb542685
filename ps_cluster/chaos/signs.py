"""Signs that a run has recovered from a fault, in its rows of progress and running processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ps_cluster.catalogue.task_types import EVALUATOR, WORKER, Task

Row = Mapping[str, Any]
Pids = Mapping[Task, int]


class Sign(Protocol):
    """A sign of recovery, looked for until `seen_at` (monotonic s) is set."""

    missing: str  # reported if the sign never comes
    seen_at: float | None

    def look(self, rows: Sequence[Row], running: Pids, now: float) -> None:
        """Look for the sign in new `rows`, and in the tasks whose process runs at `now` (monotonic s)."""


class TrainingBack:
    """A chief that started after the fault has applied updates beyond those it restored."""

    def __init__(self, fault_time: float):
        self.missing = "no update by a new chief"
        self.seen_at: float | None = None
        self._fault_time = fault_time
        self._restored: int | None = None

    def look(self, rows: Sequence[Row], running: Pids, now: float) -> None:
        for row in rows:
            if row["monotonic"] <= self._fault_time or self.seen_at is not None:
                continue
            if row["phase"] == "connecting":  # every chief writes this row first
                self._restored = row["applied"]
            elif row["phase"] == "training" and self._restored is not None and row["applied"] > self._restored:
                self.seen_at = row["monotonic"]


class WorkerBack:
    """A new process of this worker has an update applied."""

    def __init__(self, worker: Task, known_pids: set[int]):
        self.missing = f"no update by a new process of {worker}"
        self.seen_at: float | None = None
        self._index = worker.index
        self._known = known_pids

    def look(self, rows: Sequence[Row], running: Pids, now: float) -> None:
        for row in rows:
            if self.seen_at is None and worker_pids(row, self._index) - self._known:
                self.seen_at = row["monotonic"]


class ProcessBack:
    """A new process of this task runs."""

    def __init__(self, task: Task, old_pid: int):
        self.missing = f"no new process of {task}"
        self.seen_at: float | None = None
        self._task = task
        self._old_pid = old_pid

    def look(self, rows: Sequence[Row], running: Pids, now: float) -> None:
        if self.seen_at is None and running.get(self._task, self._old_pid) != self._old_pid:
            self.seen_at = now


class TrainingGoesOn:
    """A row of progress has more updates than the one before, both after this time and before that (monotonic s)."""

    def __init__(self, since: float, until: float = math.inf):
        self.missing = "no update"
        self.seen_at: float | None = None
        self._since, self._until = since, until
        self._before: int | None = None

    def look(self, rows: Sequence[Row], running: Pids, now: float) -> None:
        for row in rows:
            if not self._since < row["monotonic"] < self._until or self.seen_at is not None:
                continue
            count = self._count(row)
            if self._before is not None and count > self._before:
                self.seen_at = row["monotonic"]
            self._before = count

    def _count(self, row: Row) -> int:
        return int(row["applied"])


class WorkerGoesOn(TrainingGoesOn):
    """A row of progress has more updates of this worker than the one before, of whichever process."""

    def __init__(self, worker: Task, since: float):
        super().__init__(since)
        self.missing = f"no update by {worker}"
        self._index = worker.index

    def _count(self, row: Row) -> int:
        return sum(worker["updates"] for worker in row["workers"] if worker["index"] == self._index)


class NewFile:
    """The folder has a new file of this pattern."""

    def __init__(self, folder: Path, pattern: str):
        self.missing = f"no new file in '{folder}'"
        self.seen_at: float | None = None
        self._folder, self._pattern = folder, pattern
        self._known = self._there()

    def _there(self) -> set[Path]:
        return set(self._folder.glob(self._pattern))

    def look(self, rows: Sequence[Row], running: Pids, now: float) -> None:
        if self.seen_at is None and self._there() - self._known:
            self.seen_at = now


class FileGone:
    """A process has removed this file."""

    def __init__(self, path: Path):
        self.missing = f"'{path}' is still there"
        self.seen_at: float | None = None
        self._path = path

    def look(self, rows: Sequence[Row], running: Pids, now: float) -> None:
        if self.seen_at is None and not self._path.exists():
            self.seen_at = now


def signs_after_deaths(victims: Pids, last_row: Row | None, fault_time: float, *, whole_cluster: bool) -> list[Sign]:
    """Return the signs that a run has recovered from the death of these tasks.

    Args:
      victims: their pids just before the fault.
      last_row: the newest row of progress before it.
      whole_cluster: whether chief, parameter servers and workers restart.
    """
    signs: list[Sign] = [TrainingBack(fault_time)] if whole_cluster else []
    for victim, pid in victims.items():
        if victim.type == WORKER:
            known = worker_pids(last_row or {"workers": []}, victim.index) | {pid}
            signs.append(WorkerBack(victim, known))
        elif victim.type == EVALUATOR:
            signs.append(ProcessBack(victim, pid))
    return signs


def worker_pids(row: Row, index: int) -> set[int]:
    """Return the processes of worker `index` whose updates `row` counts."""
    return {worker["pid"] for worker in row["workers"] if worker["index"] == index and worker["updates"]}
