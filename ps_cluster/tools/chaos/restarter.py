"""Start commands, and start each again when it ends, as the schedulers of clusters do."""

from __future__ import annotations

import math
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable

from ps_cluster.config.tasks import Task
from ps_cluster.errors import FAILED, NEVER_RETRY

DELAY_S = 1.0  # from an end to the next start


def restarts_after(exit_code: int) -> float:
    """Return how many times a task that ends with this exit code may be started again (errors.py)."""
    if exit_code in (0, *NEVER_RETRY):
        return 0
    return 3 if exit_code == FAILED else math.inf


class Restarter:
    """Starts tasks, and starts each again when it ends. All of it happens in `poll`.

    Attributes:
      restarts: the number of restarts of each task.
      final: the exit codes of the tasks that are not started again.
      running: the process of each task that had not ended at the last `poll`.
      held: the tasks that are not started as long as they are in this set.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        start: Callable[[Task], subprocess.Popen[bytes]],
        clock: Callable[[], float] = time.monotonic,
    ):
        """Start all `tasks` at the first `poll`."""
        self.restarts: dict[Task, int] = {}
        self.final: dict[Task, int] = {}
        self.running: dict[Task, subprocess.Popen[bytes]] = {}
        self.held: set[Task] = set()
        self._start = start
        self._clock = clock
        self._due = dict.fromkeys(tasks, clock())
        self._ends: Counter[tuple[Task, int]] = Counter()

    def poll(self) -> list[tuple[Task, int]]:
        """Start what is due. Return the tasks that have ended since the last call, with their exit codes.

        As in `Popen`, an exit code below 0 is the signal that ended the process.
        """
        ended = [(task, code) for task, process in self.running.items() if (code := process.poll()) is not None]
        for task, code in ended:
            del self.running[task]
            self._ends[task, code] += 1
            if self._ends[task, code] > restarts_after(code):
                self.final[task] = code
            else:
                self._due[task] = self._clock() + DELAY_S
        for task in [task for task, due in self._due.items() if due <= self._clock() and task not in self.held]:
            del self._due[task]
            self.running[task] = self._start(task)
            self.restarts[task] = self.restarts.get(task, -1) + 1
        return ended
