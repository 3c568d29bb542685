"""Signs that a run has recovered from a fault, in its rows of progress and running processes."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ps_cluster.config.modes import EVALUATOR, WORKER, OnDeaths, Task
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.hosts.host import Host

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


# A kind of fault: its victims, what the system must allow, how it is injected, and the signs of recovery.

NEXT_WITHIN_S = 30.0  # seconds until a replacement runs; a stopped process counts as dead after 5 s


class ChaosFailed(Exception):
    """The run did not behave as it should. The message is one line."""


class NotAllowed(Exception):
    """This system does not allow a kind of fault. The message says why."""


class Run(Protocol):
    """The part of a TrainingRun, or of a HostedRun, that kinds of faults use."""

    files: RunDir
    tools: Path  # folder of what kinds brought along in `environment`

    @property
    def exit_code(self) -> int | None: ...

    @property
    def last_line(self) -> str: ...

    @property
    def pid(self) -> int:
        """Process id of the launcher; without one, of the leader."""

    @property
    def leader_log(self) -> Path: ...

    def new_rows(self) -> Sequence[Row]: ...

    def running(self) -> Mapping[Task, int]: ...

    def interrupt(self) -> None: ...

    def hang_up(self) -> None: ...

    def resume(self) -> None: ...


class Hosted(Run, Protocol):
    """A run on hosts (HostedRun)."""

    def host_of(self, task: Task) -> Host: ...

    def tasks_on(self, host: Host) -> Sequence[Task]: ...

    def hold(self, tasks: Sequence[Task]) -> None: ...

    def release(self, tasks: Sequence[Task]) -> None: ...


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


# Plan the faults of a run and their order: a pure function of the seed and the available kinds.

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3.0


@dataclass(frozen=True)
class Fault:
    """A fault to inject, after a pause."""

    kind: FaultKind
    victims: tuple[Task, ...]
    pause_s: float
    whole_cluster: bool  # chief, parameter servers and workers restart with it


def plan(seed: int, kinds: Sequence[FaultKind], tasks: Sequence[Task], on_death: OnDeaths) -> Iterator[Fault]:
    """Yield faults without end. Equal arguments give equal faults; the first `enough_for_all` contain every kind.

    Faults that restart the whole cluster alternate with faults that don't: the launcher rightly gives up on a cluster
    that dies again and again within seconds.

    Args:
      kinds: the kinds to draw from, at least one. tasks: those of the run. on_death: the mode's table of restarts.
    """
    source = random.Random(seed)
    decks = [_shuffled(source, deck) for deck in source.sample(_decks(kinds, on_death), 2) if deck]
    while True:
        for deck in decks:
            yield make_fault(next(deck), source, tasks, on_death)


def enough_for_all(kinds: Sequence[FaultKind], on_death: OnDeaths) -> int:
    """Return how many faults a plan needs to contain every one of these kinds."""
    return 2 * max(map(len, _decks(kinds, on_death)))


def make_fault(kind: FaultKind, source: random.Random, tasks: Sequence[Task], on_death: OnDeaths) -> Fault:
    """Return a fault of this kind, its victims and pause drawn from `source`."""
    victims = kind.choose(source, tasks)
    return Fault(kind, victims, source.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S), kind.whole_cluster(on_death))


def sort_out(kinds: Mapping[FaultKind, str | None], run: Run) -> tuple[list[FaultKind], dict[str, str]]:
    """Return the kinds that `run` can be hit with on this system, and name → reason of the others.

    Args:
      kinds: kind → reason why it is impossible, where that is known already.
    """
    reasons = {kind: reason or kind.why_not(run) for kind, reason in kinds.items()}
    allowed = [kind for kind, reason in reasons.items() if reason is None]
    return allowed, {kind.name: reason for kind, reason in reasons.items() if reason is not None}


def allowed_here(
    kinds: Mapping[FaultKind, str | None], run: Run, notify: Callable[[str], None]
) -> tuple[list[FaultKind], dict[str, str]]:
    """Return what `sort_out` does, and say why kinds are skipped. Raises ChaosFailed where none is left."""
    allowed, skipped = sort_out(kinds, run)
    for name, reason in skipped.items():
        notify(f"skipped: {name}: {reason}")
    if not allowed:
        raise ChaosFailed(f"none of the kinds of fault can be injected here: {'; '.join(skipped.values())}")
    return allowed, skipped


def _decks(kinds: Sequence[FaultKind], on_death: OnDeaths) -> list[list[FaultKind]]:
    """Return the kinds that restart the whole cluster, and the others."""
    return [[kind for kind in kinds if kind.whole_cluster(on_death) is whole] for whole in (True, False)]


def _shuffled(source: random.Random, kinds: Sequence[FaultKind]) -> Iterator[FaultKind]:
    """Yield all kinds in a random order, then all in another, without end."""
    while True:
        yield from source.sample(kinds, len(kinds))
