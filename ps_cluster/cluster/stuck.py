"""Ends processes that are there and do nothing, and tells which of them outlive even SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Callable

from ps_cluster.cluster.local_cluster import LocalCluster
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.topology import Task


class Stuck:
    """Keeps when each process froze, and when it was ended."""

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
        """Kills a process, if it is still there. What outlives that is one of `unkillable` after a while."""
        if (pid := self._cluster.pids.get(task)) is not None:
            self._ended_at.setdefault((task, pid), self._clock())
            self._cluster.signal(task, signal.SIGKILL)

    def write_stacks(self, *tasks: Task) -> None:
        """Has these processes write their Python stacks into their logs."""
        for task in tasks:
            self._cluster.signal(task, signal.SIGUSR1)
        self._sleep(self._limits.look_every_s)

    def end_frozen(self) -> None:
        """A process that is stopped is as good as dead; killed, it can't wake up in the middle of what follows."""
        now = self._clock()
        self._frozen_since = {task: self._frozen_since.get(task, now) for task in self._cluster.frozen()}
        for task, since in list(self._frozen_since.items()):
            if now - since >= self._limits.frozen_s:
                self._notice(f"{task} has been frozen for {self._limits.frozen_s:.0f} s: ending it")
                self.end(task)
                del self._frozen_since[task]

    def unkillable(self) -> list[tuple[Task, int]]:
        """Tasks, with their pids, that were ended and are still there. Each is told once."""
        pids, now = self._cluster.pids, self._clock()
        self._ended_at = {key: at for key, at in self._ended_at.items() if pids.get(key[0]) == key[1]}
        found = [key for key, at in self._ended_at.items() if now - at > self._limits.kill_s]
        for key in found:
            del self._ended_at[key]
        return found
