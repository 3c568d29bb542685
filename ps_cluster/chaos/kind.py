"""A kind of fault: its victims, what the system must allow, how it is injected, and the signs of recovery."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ps_cluster.catalogue.task_types import OnDeaths, Task
from ps_cluster.chaos.signs import Pids, Row, Sign
from ps_cluster.hosts.host import Host
from ps_cluster.run.run_dir import RunDir

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
