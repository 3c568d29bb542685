"""Start commands, and start each again when it ends, as the schedulers of clusters do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ps_cluster.catalogue.task_types import Task


class Process(Protocol):
    """The part of a `subprocess.Popen` that is used here."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


@dataclass(frozen=True)
class RestartPolicy:
    """After which exit codes a command is started again. Below 0 is the signal that ended it, as `Popen` says it.

    Attributes:
      final: not after these.
      limited: exit code → how often at most; after any other code, without end.
      delay_s: seconds from the end to the next start.
    """

    final: frozenset[int] = frozenset({0, 2, 3})
    limited: Mapping[int, int] = field(default_factory=lambda: {1: 3})
    delay_s: float = 1.0

    def is_final(self, exit_code: int, times: int) -> bool:
        """Return whether a command that ended with this code, now for the `times`-th time, stays ended."""
        return exit_code in self.final or times > self.limited.get(exit_code, times)


@dataclass(frozen=True)
class Ended:
    """One end of one process of a task."""

    task: Task
    pid: int
    exit_code: int
    time: float  # monotonic s


class Restarter:
    """The processes of tasks. Nothing happens by itself: `poll` looks and starts.

    Attributes:
      ends: every end of a process, in order.
      final: exit codes of the tasks that are not started again.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        start: Callable[[Task], Process],
        policy: RestartPolicy = RestartPolicy(),
        clock: Callable[[], float] = time.monotonic,
    ):
        self.ends: list[Ended] = []
        self.final: dict[Task, int] = {}
        self._start = start
        self._policy = policy
        self._clock = clock
        self._due = dict.fromkeys(tasks, clock())
        self._running: dict[Task, Process] = {}
        self._held: set[Task] = set()

    @property
    def running(self) -> dict[Task, Process]:
        """The newest process of each task that had not ended at the last `poll`."""
        return dict(self._running)

    @property
    def restarts(self) -> Counter[Task]:
        """The number of restarts, by task."""
        started = Counter(ended.task for ended in self.ends)
        return Counter({task: count - (task not in self._running) for task, count in started.items()})

    def poll(self) -> None:
        """Note the ends since the last call, and start what is due."""
        for task, process in self.running.items():
            if (code := process.poll()) is not None:
                self._note(task, process.pid, code)
        now = self._clock()
        for task in [task for task, due in self._due.items() if due <= now and task not in self._held]:
            del self._due[task]
            self._running[task] = self._start(task)

    def hold(self, tasks: Iterable[Task]) -> None:
        """Start these tasks no more until `release`."""
        self._held.update(tasks)

    def release(self, tasks: Iterable[Task]) -> None:
        """Start these tasks again from the next `poll` on."""
        self._held.difference_update(tasks)

    def start_anew(self) -> None:
        """Start the tasks that have ended for good, at the next `poll`."""
        self._due |= dict.fromkeys(self.final, self._clock())
        self.final.clear()

    def _note(self, task: Task, pid: int, code: int) -> None:
        del self._running[task]
        now = self._clock()
        self.ends.append(Ended(task, pid, code, now))
        times = sum(ended.task == task and ended.exit_code == code for ended in self.ends)
        if self._policy.is_final(code, times):
            self.final[task] = code
        else:
            self._due[task] = now + self._policy.delay_s
