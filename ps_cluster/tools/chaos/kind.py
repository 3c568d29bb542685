"""Define a kind of fault by its victims, what the system must allow, its injection, and the signs of recovery."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.config.registry import Named
from ps_cluster.config.tasks import EVALUATOR, WORKER, OnDeaths, Task
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.tools.chaos.hosted_run import HostedRun
from ps_cluster.tools.chaos.launched_run import LaunchedRun
from ps_cluster.tools.chaos.signs import (
    Pids,
    Sign,
    TrainingBack,
    TrainingContinues,
    WorkerBack,
    new_process,
    worker_pids,
)

Run = LaunchedRun | HostedRun

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 3.0


class ChaosFailed(Exception):
    """The run did not behave as it should have. The message is one line."""


@dataclass(frozen=True)
class Scene:
    """A run that a fault is about to hit, and the means to inject the fault.

    Attributes:
      victims: the pid of each task to hit.
      restarts_whole_cluster: whether chief, parameter servers and workers should restart.
      last_row: the newest progress row.
      now: returns monotonic seconds.
      kill: sends a signal to a process, as `os.kill`.
      wait_for: `wait_for(condition, limit_s, problem)` waits until `condition()` is true. It raises ChaosFailed after
        `limit_s` seconds, with `problem` in the message, or if the run ends first.
      wait_for_end: waits until the run has ended. It raises ChaosFailed unless the run ends with the given exit code.
    """

    run: Run
    victims: Pids
    restarts_whole_cluster: bool
    last_row: ProgressRow | None
    now: Callable[[], float]
    kill: Callable[[int, int], None]
    wait_for: Callable[[Callable[[], bool], float, str], None]
    wait_for_end: Callable[[int], None]

    @property
    def launched(self) -> LaunchedRun:
        """The run as a `LaunchedRun`, for kinds of fault that need a launcher."""
        assert not isinstance(self.run, HostedRun)
        return self.run

    @property
    def hosted(self) -> HostedRun:
        """The run as a `HostedRun`, for kinds of fault that need hosts."""
        assert isinstance(self.run, HostedRun)
        return self.run

    def wait(self, seconds: float) -> None:
        """Let the fault last for some seconds."""
        until = self.now() + seconds
        self.wait_for(lambda: self.now() >= until, seconds + 1, "the clock did not advance")

    def worker_back(self, worker: Task, pid: int) -> Sign:
        """Return a sign of recovery: an update by a process of `worker` that is newer than process `pid`."""
        known = worker_pids(self.last_row, worker.index) if self.last_row else set()
        return WorkerBack(worker, known | {pid})

    def signs_after_deaths(self, fault_time: float, victims: Pids | None = None) -> list[Sign]:
        """Return the signs of recovery from the death of `victims`, by default the victims of the scene."""
        signs: list[Sign] = [TrainingBack(fault_time)] if self.restarts_whole_cluster else []
        for victim, pid in (self.victims if victims is None else victims).items():
            if victim.type == WORKER:
                signs.append(self.worker_back(victim, pid))
            elif victim.type == EVALUATOR:
                signs.append(new_process(victim, pid))
        return signs


@dataclass(frozen=True)
class Injection:
    """An injected fault, and the signs that the run has recovered from it.

    Attributes:
      time: the moment of the fault, or its end if it lasts some time, in monotonic seconds.
      then: a function without arguments that is called when all signs have been seen, e.g. to undo the fault.
    """

    time: float
    signs: Sequence[Sign]
    then: Callable[[], None] = lambda: None


class FaultKind(Named, ABC):
    """One kind of fault. `kinds.FAULTS` finds all instances at the top level of the files in kinds/.

    Attributes:
      name: the name of the kind in options and reports.
      victims: the type of each task that the fault hits; empty if it hits the run as a whole.
      launched: whether the fault can hit a run that a launcher watches.
      hosted: whether the fault can hit tasks on hosts.
      others_continue: whether the other workers have to continue while the victims are missing.
      all_survive: whether every process that runs when the fault is injected has to survive it.
    """

    name: str
    victims: tuple[str, ...] = ()
    launched: bool = True
    hosted: bool = False
    others_continue: bool = False
    all_survive: bool = False

    def choose(self, source: random.Random, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """Return the tasks to hit, chosen from the tasks of a run."""
        of_type = ([task for task in tasks if task.type == victim] for victim in self.victims)
        return tuple(map(source.choice, of_type))

    def restarts_whole_cluster(self, on_death: OnDeaths) -> bool:
        """Return whether the fault makes chief, parameter servers and workers restart from a snapshot."""
        return False

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Write the files that the fault needs into `folder`. Return environment variables to add to those of the run.

        This is called before the run starts.
        """
        return {}

    def why_not(self, run: Run) -> str | None:
        """Return why this kind can't hit `run` on this system; None if it can."""
        return None

    @abstractmethod
    def inject(self, scene: Scene) -> Injection:
        """Inject the fault, and undo its lasting effects. Raises ChaosFailed if the run does not react as it should."""


class Death(FaultKind):
    """A kind of fault whose victims die. The mode's `on_death` table says which tasks restart after a death."""

    def restarts_whole_cluster(self, on_death: OnDeaths) -> bool:
        return any(on_death[victim].restarts_whole_cluster for victim in self.victims)


class Lasting(FaultKind):
    """A kind of fault that lasts for some seconds. After that, the training has to continue.

    If the fault hits a worker, this worker has to continue.
    """

    seconds: float

    @abstractmethod
    def degraded(self, scene: Scene) -> AbstractContextManager[object]:
        """Return a context manager that degrades a part of the run, e.g. a link, while its block runs."""

    def inject(self, scene: Scene) -> Injection:
        with self.degraded(scene):
            scene.wait(self.seconds)
        return Injection(scene.now(), [TrainingContinues(scene.now(), of=next(iter(scene.victims), None))])


@dataclass(frozen=True)
class Fault:
    """A fault to inject after a pause."""

    kind: FaultKind
    victims: tuple[Task, ...]
    pause_s: float
    restarts_whole_cluster: bool  # whether the fault makes chief, parameter servers and workers restart


def make_fault(kind: FaultKind, source: random.Random, tasks: Sequence[Task], on_death: OnDeaths) -> Fault:
    """Return a fault of this kind. Its victims and pause are drawn from `source`."""
    victims = kind.choose(source, tasks)
    return Fault(
        kind, victims, source.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S), kind.restarts_whole_cluster(on_death)
    )
