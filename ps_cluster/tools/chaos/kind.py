"""A kind of fault: its victims, what the system must allow, how it is injected, and the signs of recovery."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ps_cluster.config.tasks import EVALUATOR, WORKER, OnDeaths, Task

if TYPE_CHECKING:
    from ps_cluster.tools.chaos.disturbed_runs import HostedRun, Run, TrainingRun

Row = Mapping[str, Any]  # of progress
Pids = Mapping[Task, int]  # of the tasks whose process runs

NEXT_WITHIN_S = 30.0  # seconds until a replacement runs; a stopped process counts as dead after 5 s


class ChaosFailed(Exception):
    """The run did not behave as it should. The message is one line."""


class Sign(ABC):
    """A sign that a run has recovered, looked for until `seen_at` (monotonic s) is set.

    Attributes:
      missing: reported if the sign never comes.
    """

    missing = ""
    seen_at: float | None = None

    def look(self, rows: Sequence[Row], running: Pids, now: float) -> None:
        """Look for the sign in new `rows`, and in the tasks whose process runs at `now` (monotonic s)."""
        if self.seen_at is None:
            self.seen_at = self.seen(rows, running, now)

    @abstractmethod
    def seen(self, rows: Sequence[Row], running: Pids, now: float) -> float | None:
        """Return when the sign came; None if it has not."""


class TrainingBack(Sign):
    """A chief that started after the fault has applied updates beyond those it restored."""

    missing = "no update by a new chief"

    def __init__(self, fault_time: float):
        self._fault_time = fault_time
        self._restored: int | None = None

    def seen(self, rows: Sequence[Row], running: Pids, now: float) -> float | None:
        for row in rows:
            if row["monotonic"] <= self._fault_time:
                continue
            if row["phase"] == "connecting":  # every chief writes this row first
                self._restored = row["applied"]
            elif row["phase"] == "training" and self._restored is not None and row["applied"] > self._restored:
                return float(row["monotonic"])
        return None


class TrainingGoesOn(Sign):
    """A row of progress has more updates than the one before, both after this time and before that (monotonic s)."""

    def __init__(self, since: float, until: float = math.inf, of: Task | None = None):
        """Wait for an update. `of`: the task that was hit; if it is a worker, only its own count, of whichever process."""
        self._worker = of if of is not None and of.type == WORKER else None
        self.missing = f"no update by {self._worker}" if self._worker else "no update"
        self._since, self._until = since, until
        self._before: int | None = None

    def seen(self, rows: Sequence[Row], running: Pids, now: float) -> float | None:
        for row in rows:
            if not self._since < row["monotonic"] < self._until:
                continue
            count = row["applied"]
            if self._worker:
                count = sum(worker["updates"] for worker in row["workers"] if worker["index"] == self._worker.index)
            if self._before is not None and count > self._before:
                return float(row["monotonic"])
            self._before = count
        return None


class WorkerBack(Sign):
    """A new process of this worker has an update applied."""

    def __init__(self, worker: Task, known_pids: set[int]):
        self.missing = f"no update by a new process of {worker}"
        self._index = worker.index
        self._known = known_pids

    def seen(self, rows: Sequence[Row], running: Pids, now: float) -> float | None:
        return next((row["monotonic"] for row in rows if worker_pids(row, self._index) - self._known), None)


class Condition(Sign):
    """Something is the case, as of the tasks that run."""

    def __init__(self, missing: str, holds: Callable[[Pids], bool]):
        self.missing = missing
        self._holds = holds

    def seen(self, rows: Sequence[Row], running: Pids, now: float) -> float | None:
        return now if self._holds(running) else None


def new_file(folder: Path, pattern: str) -> Sign:
    """Return the sign that the folder has a new file of this pattern."""
    known = set(folder.glob(pattern))
    return Condition(f"no new file in '{folder}'", lambda _: bool(set(folder.glob(pattern)) - known))


def worker_pids(row: Row, index: int) -> set[int]:
    """Return the processes of worker `index` whose updates `row` counts."""
    return {worker["pid"] for worker in row["workers"] if worker["index"] == index and worker["updates"]}


@dataclass(frozen=True)
class Scene:
    """A run that is about to be hit, and the means to do it.

    Attributes:
      victims: task → pid.
      whole_cluster: whether chief, parameter servers and workers should restart.
      last_row: the newest row of progress.
      now: returns monotonic seconds.
      wait_for: waits until the condition holds; raises ChaosFailed with the problem if that takes longer than the
        seconds given, or if the run ends first.
      wait_for_end: waits until the run has ended; raises ChaosFailed unless it ended with this exit code.
    """

    run: Run
    victims: Pids
    whole_cluster: bool
    last_row: Row | None
    now: Callable[[], float]
    kill: Callable[[int, int], None]
    wait_for: Callable[[Callable[[], bool], float, str], None]
    wait_for_end: Callable[[int], None]

    @property
    def launched(self) -> TrainingRun:
        """The run, for kinds that need a launcher."""
        return cast("TrainingRun", self.run)

    @property
    def hosted(self) -> HostedRun:
        """The run, for kinds that are for tasks on hosts alone."""
        return cast("HostedRun", self.run)

    def wait(self, seconds: float) -> None:
        """Leave the run alone with the fault for some seconds."""
        until = self.now() + seconds
        self.wait_for(lambda: self.now() >= until, seconds + 1, "time stood still")

    def wait_for_next(self, victim: Task) -> int:
        """Return the pid of the process that replaces a killed victim."""

        def pid() -> int:
            return self.run.running().get(victim, self.victims[victim])

        self.wait_for(lambda: pid() != self.victims[victim], NEXT_WITHIN_S, f"no new process of {victim}")
        return pid()

    def worker_back(self, worker: Task, pid: int) -> Sign:
        """Return the sign that a process of this worker takes part that is neither `pid` nor one before it."""
        return WorkerBack(worker, worker_pids(self.last_row or {"workers": []}, worker.index) | {pid})

    def signs_after_deaths(self, fault_time: float, victims: Pids | None = None) -> list[Sign]:
        """Return the signs that the run has recovered from the death of `victims`; None: of those of the scene."""
        signs: list[Sign] = [TrainingBack(fault_time)] if self.whole_cluster else []
        for victim, pid in (self.victims if victims is None else victims).items():
            if victim.type == WORKER:
                signs.append(self.worker_back(victim, pid))
            elif victim.type == EVALUATOR:
                signs.append(_process_back(victim, pid))
        return signs


def _process_back(task: Task, old_pid: int) -> Sign:
    return Condition(f"no new process of {task}", lambda running: running.get(task, old_pid) != old_pid)


@dataclass(frozen=True)
class Injection:
    """An injected fault: its time, or the end of its duration (monotonic s), and the signs of recovery.

    Attributes:
      then: called when they are seen.
    """

    time: float
    signs: Sequence[Sign]
    then: Callable[[], None] = lambda: None


class FaultKind(ABC):
    """One kind of fault. Subclass it; `kinds.FAULTS` finds an instance at the top level of a file in kinds/.

    Attributes:
      name: for options and reports.
      victims: types of the tasks that it hits at the same time, one of each; empty if it hits the run as a whole.
      launched: whether it can hit a run that a launcher watches. hosted: whether it can hit tasks on hosts.
      others_go_on: whether workers have to go on while its victims are missing.
    """

    name: str
    victims: tuple[str, ...] = ()
    launched: bool = True
    hosted: bool = False
    others_go_on: bool = False

    def choose(self, source: random.Random, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """Return the tasks to hit, chosen from those of a run."""
        of_type = ([task for task in tasks if task.type == victim] for victim in self.victims)
        return tuple(map(source.choice, of_type))

    def whole_cluster(self, on_death: OnDeaths) -> bool:
        """Return whether chief, parameter servers and workers restart with it, from a snapshot."""
        return False

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Put into `folder` what a run needs from its start; return the environment variables for it."""
        return {}

    def why_not(self, run: Run) -> str | None:
        """Return why a running training can't be hit so on this system; None where it can."""
        return None

    @abstractmethod
    def inject(self, scene: Scene) -> Injection:
        """Inject the fault, and undo what would outlast it. Raises ChaosFailed where the run does not behave."""


class Lasting(FaultKind):
    """Something is worse for some seconds; then training, or the worker that was hit, goes on."""

    seconds: float

    @abstractmethod
    def worse(self, scene: Scene) -> AbstractContextManager[object]:
        """Return the block in which it is so."""

    def inject(self, scene: Scene) -> Injection:
        with self.worse(scene):
            scene.wait(self.seconds)
        return Injection(scene.now(), [TrainingGoesOn(scene.now(), of=next(iter(scene.victims), None))])
