"""End processes that are stuck, and report those that outlive even SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Callable

from ps_cluster.catalogue.task_types import Task
from ps_cluster.cluster.local_cluster import LocalCluster
from ps_cluster.cluster.policy import Limits


class Stuck:
    """Kills stuck processes; remembers when each froze and when it was killed."""

    def __init__(
        self,
        cluster: LocalCluster,
        limits: Limits,
        notice: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ):
        self._cluster = cluster
        self._limits = limits
        self._notice = notice
        self._clock = clock
        self._sleep = sleep
        self._frozen_since: dict[Task, float] = {}
        self._ended_at: dict[tuple[Task, int], float] = {}

    def end(self, task: Task) -> None:
        """Kill a task's process, if there is one. If it outlives that, `unkillable` returns it later."""
        if (pid := self._cluster.pids.get(task)) is not None:
            self._ended_at.setdefault((task, pid), self._clock())
            self._cluster.signal(task, signal.SIGKILL)

    def write_stacks(self, *tasks: Task) -> None:
        """Make these tasks write their Python stacks into their logs."""
        for task in tasks:
            self._cluster.signal(task, signal.SIGUSR1)
        self._sleep(self._limits.look_every_s)

    def end_frozen(self) -> None:
        """Kill processes that were stopped (SIGSTOP) for too long, so that they can't wake up during a recovery."""
        now = self._clock()
        self._frozen_since = {task: self._frozen_since.get(task, now) for task in self._cluster.frozen()}
        for task, since in list(self._frozen_since.items()):
            if now - since >= self._limits.frozen_s:
                self._notice(f"{task} has been frozen for {self._limits.frozen_s:.0f} s: ending it")
                self.end(task)
                del self._frozen_since[task]

    def unkillable(self) -> list[tuple[Task, int]]:
        """Return the tasks, with their pids, that were killed and are still there. Each is returned once."""
        pids, now = self._cluster.pids, self._clock()
        self._ended_at = {key: at for key, at in self._ended_at.items() if pids.get(key[0]) == key[1]}
        found = [key for key, at in self._ended_at.items() if now - at > self._limits.kill_s]
        for key in found:
            del self._ended_at[key]
        return found
