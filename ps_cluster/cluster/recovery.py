"""Counts deaths in a row, says when to start again and when to give up, and keeps what is to be done at which time."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ps_cluster.catalogue.task_types import OnDeaths
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.supervisor import TaskExit

CLUSTER = "the cluster"


class Recovery:
    """Deaths in a row of each task, and of those together that take the whole cluster with them (`CLUSTER`)."""

    def __init__(self, limits: Limits, on_death: OnDeaths, clock: Callable[[], float]):
        self._limits = limits
        self._on_death = on_death
        self._clock = clock
        self._deaths: dict[Hashable, int] = {}
        self._first: dict[Hashable, TaskExit] = {}
        self._last_start: dict[Hashable, float] = {}
        self._updates: dict[Hashable, int] = {}

    def next_delay_s(self, key: Hashable, task_exit: TaskExit, updates: int, silent_s: float = 0.0) -> float | None:
        """Seconds after which to start again; None to give up.

        Args:
          key: the task, or CLUSTER.
          updates: the most that were ever applied. A cluster that got further than at its last death did not die "in a
            row", however soon; one that did not has, however late. For a task alone it is the time that counts.
          silent_s: seconds at the end of its life in which it did nothing; they do not count.
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
        """What began the last deaths in a row, on one line."""
        return f"{self._first[key]} (given up after {self._deaths[key] - 1} restarts)"

    def _has_recovered(self, key: Hashable, updates: int, silent_s: float) -> bool:
        if key == CLUSTER:
            return updates > self._updates[key]
        return self._clock() - self._last_start[key] - silent_s > self._limits.stable_s

    def _backoff_s(self, deaths: int) -> float:
        """0 after the first death, so that one accident costs no time."""
        return 0.0 if deaths == 1 else min(self._limits.longest_backoff_s, self._limits.backoff_s * 2 ** (deaths - 2))


class Plans:
    """What is to be done later, one thing for each key."""

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
        """Does what is due; says whether anything was."""
        due = [key for key, (time_s, _) in self._plans.items() if time_s <= self._clock()]
        for key in due:
            self._plans.pop(key)[1]()
        return bool(due)
