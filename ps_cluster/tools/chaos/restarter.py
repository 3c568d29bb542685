"""Start commands, and start each again when it ends, as the schedulers of clusters do."""

from __future__ import annotations

import math
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ps_cluster.config.tasks import Task
from ps_cluster.errors import FAILED, NEVER_RETRY
from ps_cluster.launch.recovery import RestartPolicy


@dataclass(frozen=True)
class Ended:
    """The end of one process of a task. As in `Popen`, an exit code below 0 is the signal that ended it."""

    task: Task
    exit_code: int


def restarts_after(exit_code: int) -> float:
    """Return how many times a task that ends with this exit code may be started again (errors.py)."""
    if exit_code in (0, *NEVER_RETRY):
        return 0
    return 3 if exit_code == FAILED else math.inf


class Restarter:
    """Start tasks, and start each again when it ends, as the schedulers of clusters do. All of it happens in `poll`.

    Attributes:
      ends: all ends of processes, in order.
      final: the exit codes of the tasks that are not started again.
      running: the process of each task that had not ended at the last `poll`.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        start: Callable[[Task], subprocess.Popen[bytes]],
        *,
        delay_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Start all `tasks` at the first `poll`.

        Args:
          delay_s: seconds from an end to the next start.
        """
        self.ends: list[Ended] = []
        self.final: dict[Task, int] = {}
        self.running: dict[Task, subprocess.Popen[bytes]] = {}
        self._start = start
        self._policy = RestartPolicy(delays_s=(delay_s,))
        self._clock = clock
        self._due = dict.fromkeys(tasks, clock())
        self._held: set[Task] = set()

    @property
    def restarts(self) -> Counter[Task]:
        """The number of restarts, by task."""
        started = Counter(ended.task for ended in self.ends)
        return Counter({task: count - (task not in self.running) for task, count in started.items()})

    def poll(self) -> list[Ended]:
        """Return the ends since the last call, and start what is due."""
        before = len(self.ends)
        for task, process in list(self.running.items()):
            if (code := process.poll()) is None:
                continue
            del self.running[task]
            self.ends.append(ended := Ended(task, code))
            delay_s = self._policy.next_delay_s(ended, restarts_after(code))  # counts each exit code by itself
            if delay_s is None:
                self.final[task] = code
            else:
                self._due[task] = self._clock() + delay_s
        now = self._clock()
        for task in [task for task, due in self._due.items() if due <= now and task not in self._held]:
            del self._due[task]
            self.running[task] = self._start(task)
        return self.ends[before:]

    def hold(self, tasks: Iterable[Task]) -> None:
        """Do not start these tasks until `release`."""
        self._held.update(tasks)

    def release(self, tasks: Iterable[Task]) -> None:
        """Start these tasks again, from the next `poll` on."""
        self._held.difference_update(tasks)
