"""Decide after a death who starts again, when, and when to give up; keep the actions that are planned for later.

What follows from the death of a worker, a ps, the chief or the evaluator is the mode's table, `Mode.on_death`
(`ON_DEATH` in catalogue/task_types.py, unless the mode has its own). This module counts by it.
"""

from __future__ import annotations

from collections.abc import Hashable

from ps_cluster.catalogue.task_types import CHIEF, PS, WORKER, OnDeaths, Task
from ps_cluster.cluster.events_and_actions import Action
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.task import PORT_TAKEN
from ps_cluster.processes.supervisor import TaskExit

CLUSTER = "the cluster"
_IN_WORDS = {CHIEF: "chief", PS: "ps", WORKER: "workers"}


class Recovery:
    """Counts deaths in a row, for each task by itself, and together for deaths that restart the whole cluster."""

    def __init__(self, limits: Limits, on_death: OnDeaths):
        self._limits = limits
        self._on_death = on_death
        self._deaths: dict[Hashable, int] = {}
        self._first: dict[Hashable, TaskExit] = {}
        self._died: dict[Hashable, set[Task]] = {}
        self._last_start: dict[Hashable, float] = {}
        self._updates: dict[Hashable, int] = {}

    def restarts_all(self, death: TaskExit) -> bool:
        """Return whether all training tasks start again with this one."""
        # A worker whose port is taken needs another address, which the others only learn by a restart.
        return self._on_death[death.task.type].whole_cluster or death.exit_code == PORT_TAKEN

    def next_delay_s(self, death: TaskExit, updates: int, now_s: float, silent_s: float = 0.0) -> float | None:
        """Count a death; return the seconds after which to start again, None to give up.

        Args:
          updates: the most updates ever applied. A cluster's death is "in a row" if no new update came since its last
            death, however long ago that was. For a single task the time it lived decides.
          silent_s: seconds at the end of its life without an update; they do not count as life.
        """
        key = self._key(death)
        if key not in self._deaths or self._has_recovered(key, updates, now_s - silent_s):
            self._deaths[key], self._first[key], self._died[key] = 0, death, set()
        self._deaths[key] += 1
        self._died[key].add(death.task)
        self._updates[key] = updates
        if self._deaths[key] > self._on_death[death.task.type].restarts:
            return None
        delay_s = self._backoff_s(self._deaths[key])
        self._last_start[key] = now_s + delay_s
        return delay_s

    def first_cause(self, death: TaskExit) -> str:
        """Return the first of the deaths in a row to which this one belongs, on one line."""
        key = self._key(death)
        return f"{self._first[key]} (given up after {self._deaths[key] - 1} restarts)"

    def others_died(self, task: Task) -> bool:
        """Return whether, in the row of deaths of the cluster, another task of this type died too.

        Then it is not this one's machine or memory that is at fault, and the cluster does no better without it.
        """
        died = self._died.get(CLUSTER, set()) if self._on_death[task.type].whole_cluster else set()
        return any(other.type == task.type and other != task for other in died)

    def forgive(self, task: Task) -> None:
        """Forget the deaths of the cluster, as it goes on without `task`."""
        if self._on_death[task.type].whole_cluster:
            self._deaths.pop(CLUSTER, None)

    def _key(self, death: TaskExit) -> Hashable:
        return CLUSTER if self.restarts_all(death) else death.task

    def _has_recovered(self, key: Hashable, updates: int, lived_until_s: float) -> bool:
        if key == CLUSTER:
            return updates > self._updates[key]
        return lived_until_s - self._last_start[key] > self._limits.stable_s

    def _backoff_s(self, deaths: int) -> float:
        """Return the seconds before a restart; 0 after the first death, so that one accident costs no time."""
        return 0.0 if deaths == 1 else min(self._limits.longest_backoff_s, self._limits.backoff_s * 2 ** (deaths - 2))


class Plans:
    """Actions to take later, at most one for each key: a task, or `CLUSTER`."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, tuple[float, Action]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._plans

    def add(self, key: Hashable, at_s: float, action: Action) -> None:
        """Plan an action for a time."""
        self._plans[key] = (at_s, action)

    def drop(self, *keys: Hashable) -> None:
        """Forget what is planned for these keys."""
        for key in keys:
            self._plans.pop(key, None)

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()

    def due(self, now_s: float) -> list[Action]:
        """Return the actions whose time has come; they are no longer planned."""
        due = [key for key, (at_s, _) in self._plans.items() if at_s <= now_s]
        return [self._plans.pop(key)[1] for key in due]


def all_of(types: tuple[str, ...]) -> str:
    """Return "chief, ps and workers", or those of them that the cluster has."""
    *others, last = (_IN_WORDS[kind] for kind in types)
    return f"{', '.join(others)} and {last}" if others else last


def after(delay_s: float) -> str:
    """Return " in 2 s", or nothing for no delay."""
    return f" in {delay_s:g} s" if delay_s else ""
