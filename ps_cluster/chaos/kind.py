"""A kind of fault: whom it hits, what the system must allow for it, how it is injected, and how recovery is seen."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ps_cluster.catalogue.task_types import OnDeaths
from ps_cluster.chaos.signs import Pids, Row, Sign
from ps_cluster.cluster.topology import Task
from ps_cluster.run_dir import RunDir

NEXT_WITHIN_S = 30.0  # a process that is stopped is taken for dead after 5 s


class ChaosFailed(Exception):
    """The run did not do what it should; the message is one line."""


class NotAllowed(Exception):
    """This system does not allow a fault of some kind; the message says why."""


class Run(Protocol):
    """The part of a TrainingRun that a kind of fault uses."""

    exit_code: int | None
    last_line: str
    pid: int  # of the launcher
    files: RunDir
    leader_log: Path
    tools: Path  # what kinds brought along in `environment`

    def new_rows(self) -> list[dict[str, Any]]: ...

    def running(self) -> Mapping[Task, int]: ...

    def interrupt(self) -> None: ...

    def hang_up(self) -> None: ...

    def resume(self) -> None: ...


@dataclass(frozen=True)
class Scene:
    """The run that a fault is about to hit, and the means to do so.

    Attributes:
      victims: with their pids.
      whole_cluster: whether chief, parameter servers and workers are expected to start again.
      last_row: the newest row of progress.
      now: monotonic s.
      wait_for: waits until the condition holds; raises ChaosFailed with the problem where it takes longer than the
        seconds between them, or where the run ends meanwhile.
      wait_for_end: waits until the run has ended; raises ChaosFailed unless with this exit code.
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
        """Leaves the run alone with the fault."""
        until = self.now() + seconds
        self.wait_for(lambda: self.now() >= until, seconds + 1, "time stood still")

    def wait_for_next(self, victim: Task) -> int:
        """Returns the pid of the process that comes in the place of a victim that was ended."""

        def pid() -> int:
            return self.run.running().get(victim, self.victims[victim])

        self.wait_for(lambda: pid() != self.victims[victim], NEXT_WITHIN_S, f"no new process of {victim}")
        return pid()


@dataclass(frozen=True)
class Injection:
    """When a fault was injected, or where it lasts was over (monotonic s), and what must be seen until it is recovered from."""

    time: float
    signs: Sequence[Sign]


class FaultKind(ABC):
    """One kind of fault. Subclass it; `kinds.FAULTS` finds it.

    Attributes:
      name: by which it is chosen and told.
      victims: the types of the tasks that it hits at the same time, one of each; none where it hits the run as a whole.
    """

    name: str
    victims: tuple[str, ...] = ()

    def choose(self, source: random.Random, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """Returns the tasks to hit, of those that a run has."""
        of_type = ([task for task in tasks if task.type == victim] for victim in self.victims)
        return tuple(map(source.choice, of_type))

    def whole_cluster(self, on_death: OnDeaths) -> bool:
        """Return whether chief, parameter servers and workers start again with it, from a snapshot."""
        return False

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Brings along what a run must have from its start, in `folder`; returns the environment variables that say so."""
        return {}

    def why_not(self, run: Run) -> str | None:
        """Why a run that trains can't be hit so on this system; None where it can."""
        return None

    @abstractmethod
    def inject(self, scene: Scene) -> Injection:
        """Does it to the run, and takes back what would outlast it. Raises ChaosFailed where the run does not as it should."""
