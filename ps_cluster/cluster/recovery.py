"""Decide after a death when to start again and when to give up; keep the actions planned for later."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ps_cluster.catalogue.task_types import OnDeaths
from ps_cluster.cluster.policy import Limits
from ps_cluster.processes.supervisor import TaskExit

CLUSTER = "the cluster"


class Recovery:
    """Counts deaths in a row, for each task and, under the key `CLUSTER`, for deaths that restart the whole cluster."""

    def __init__(self, limits: Limits, on_death: OnDeaths, clock: Callable[[], float]):
        self._limits = limits
        self._on_death = on_death
        self._clock = clock
        self._deaths: dict[Hashable, int] = {}
        self._first: dict[Hashable, TaskExit] = {}
        self._last_start: dict[Hashable, float] = {}
        self._updates: dict[Hashable, int] = {}

    def next_delay_s(self, key: Hashable, task_exit: TaskExit, updates: int, silent_s: float = 0.0) -> float | None:
        """Count a death; return the seconds after which to start again, None to give up.

        Args:
          key: the task, or CLUSTER.
          updates: the most updates ever applied. A cluster's death is "in a row" if no new update came since its last
            death, however long ago that was. For a single task the time it lived decides.
          silent_s: seconds at the end of its life without an update; they do not count as life.
        """
        if key not in self._deaths or self._has_recovered(key, updates, silent_s):
            self._deaths[key], self._first[key] = 0, task_exit
        self._deaths[key] += 1
        self._updates[key] = updates
        if self._deaths[key] > self._on_death[task_exit.task.type].restarts:
            return None
        delay_s = self._backoff_s(self._deaths[key])
        self._last_start[key] = self._clock() + delay_s
        return delay_s

    def first_cause(self, key: Hashable) -> str:
        """Return the first of the last deaths in a row, on one line."""
        return f"{self._first[key]} (given up after {self._deaths[key] - 1} restarts)"

    def _has_recovered(self, key: Hashable, updates: int, silent_s: float) -> bool:
        if key == CLUSTER:
            return updates > self._updates[key]
        return self._clock() - self._last_start[key] - silent_s > self._limits.stable_s

    def _backoff_s(self, deaths: int) -> float:
        """Return the seconds before a restart; 0 after the first death, so that one accident costs no time."""
        return 0.0 if deaths == 1 else min(self._limits.longest_backoff_s, self._limits.backoff_s * 2 ** (deaths - 2))


class Plans:
    """Actions to do later, at most one for each key."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._plans: dict[Hashable, tuple[float, Callable[[], None]]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._plans

    def add(self, key: Hashable, delay_s: float, action: Callable[[], None]) -> None:
        self._plans[key] = (self._clock() + delay_s, action)

    def drop(self, *keys: Hashable) -> None:
        for key in keys:
            self._plans.pop(key, None)

    def clear(self) -> None:
        self._plans.clear()

    def carry_out(self) -> bool:
        """Do the actions that are due; return whether there were any."""
        due = [key for key, (time_s, _) in self._plans.items() if time_s <= self._clock()]
        for key in due:
            self._plans.pop(key)[1]()
        return bool(due)
