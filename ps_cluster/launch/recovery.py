"""Decide after a death which tasks start again, when, and when to give up.

The table `Mode.cluster.on_death` says for each type of task what happens when it dies. It is `ON_DEATH` in config/tasks.py,
unless the mode has a table of its own. This module counts the deaths. Deaths without a recovery between them form a
streak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ps_cluster.config.tasks import OnDeaths, Task
from ps_cluster.errors import PORT_IN_USE
from ps_cluster.launch.stages import RunLimits
from ps_cluster.system.supervisor import TaskExit

Key = TypeVar("Key", bound=Hashable)
_WHOLE_CLUSTER = None  # the key of deaths that restart all training tasks; a task that restarts alone is its own key


class RestartPolicy(Generic[Key]):
    """A policy that counts deaths, and decides when to restart something and when to give it up.

    `key` says what died: a task of a run (in `Recovery`), or a whole run (in tools/fleet.py). Deaths of the same `key`
    without a recovery between them form a streak. `delays_s`: the delays before the first, second, … restart of a
    streak. The last delay is repeated.
    """

    def __init__(self, delays_s: Sequence[float]):
        self._delays_s = delays_s
        self._deaths: Counter[Key] = Counter()

    def record_death(self, key: Key, most_restarts: float) -> float | None:
        """Count a death of `key`. Return the number of seconds after which to restart it.

        Return None if it has to be given up, because it was restarted `most_restarts` times in this streak.
        """
        self._deaths[key] += 1
        if self._deaths[key] > most_restarts:
            return None
        return self._delays_s[min(self._deaths[key], len(self._delays_s)) - 1]

    def deaths(self, key: Key) -> int:
        """Return the number of deaths in the present streak of `key`."""
        return self._deaths[key]

    def end_streak(self, key: Key) -> None:
        """Reset the count of deaths of `key`, because it has recovered or starts from the beginning."""
        del self._deaths[key]


@dataclass
class _Streak:
    """A streak: deaths of one task, or of the whole cluster, without a recovery between them."""

    first: TaskExit
    died: set[Task] = field(default_factory=set)
    updates: int = 0  # the highest number of applied updates at the last death
    started_s: float = 0.0  # when the task starts, or was started, after the last death


class Recovery:
    """A policy for recovery from deaths: a task restarts alone, or its death restarts all training tasks.

    `Decisions.task_died` turns the answers of this policy into actions.
    """

    def __init__(self, limits: RunLimits, on_death: OnDeaths):
        self._stable_s = limits.stable_s
        self._longest_delay_s = limits.restart_delays_s[-1]
        self._on_death = on_death
        self._policy = RestartPolicy[Task | None](limits.restart_delays_s)
        self._streaks: dict[Task | None, _Streak] = {}

    def restarts_all(self, death: TaskExit) -> bool:
        """Return whether this death restarts all training tasks."""
        # A worker whose port is taken needs another address, which the others only learn by a restart.
        return self._on_death[death.task.type].restarts_whole_cluster or death.exit_code == PORT_IN_USE

    def record_death(self, death: TaskExit, updates: int, now_s: float, silent_s: float = 0.0) -> float | None:
        """Count a death. Return the number of seconds after which to restart, or None to give up.

        Deaths without a recovery between them form a streak, which has a limited number of restarts. If a death of the
        task restarts the whole cluster, the cluster has recovered only when it has applied more updates than ever
        before, however long that takes. If the task restarts alone, it has recovered once it has lived for more than
        `RunLimits.stable_s` seconds.

        Args:
          updates: the highest number of updates that were ever applied.
          silent_s: the seconds without an update at the end of the task's life. They do not count as lifetime.
        """
        key = self._key(death)
        streak = self._streaks.get(key)
        if streak is not None:
            lived_s = now_s - silent_s - streak.started_s
            has_recovered = updates > streak.updates if key is _WHOLE_CLUSTER else lived_s > self._stable_s
        if streak is None or has_recovered:
            streak = self._streaks[key] = _Streak(death)
            self._policy.end_streak(key)
        streak.died.add(death.task)
        streak.updates = updates
        delay_s = self._policy.record_death(key, self._on_death[death.task.type].restarts)
        if delay_s is not None and death.pid is None:  # the machine has no room for another process, and needs time
            delay_s = self._longest_delay_s
        streak.started_s = now_s + (delay_s or 0.0)
        return delay_s

    def first_cause(self, death: TaskExit) -> str:
        """Return a line about the first death of the streak to which `death` belongs."""
        key = self._key(death)
        return f"{self._streaks[key].first} (given up after {self._policy.deaths(key) - 1} restarts)"

    def others_died(self, task: Task) -> bool:
        """Return whether another task of the same type died in the present streak of deaths that restart the cluster.

        If so, the machine or memory of this task is not the cause, and giving this task up would not help the cluster.
        """
        streak = self._streaks.get(_WHOLE_CLUSTER) if self._on_death[task.type].restarts_whole_cluster else None
        return streak is not None and any(other.type == task.type and other != task for other in streak.died)

    def forgive(self, task: Task) -> None:
        """Forget the earlier deaths that restarted the whole cluster, because the cluster continues without `task`.

        Does nothing if a death of `task` does not restart the whole cluster.
        """
        if self._on_death[task.type].restarts_whole_cluster:
            self._streaks.pop(_WHOLE_CLUSTER, None)  # the next death begins a new streak

    def _key(self, death: TaskExit) -> Task | None:
        return _WHOLE_CLUSTER if self.restarts_all(death) else death.task


def delay_text(delay_s: float) -> str:
    """Return a text such as " in 2 s", or "" if there is no delay."""
    return f" in {delay_s:g} s" if delay_s else ""
