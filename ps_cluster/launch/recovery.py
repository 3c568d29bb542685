"""Decide after a death which tasks start again, when, and when to give up.

The table `Mode.cluster.on_death` says for each type of task what happens when it dies. It is `ON_DEATH` in config/tasks.py,
unless the mode has a table of its own. This module counts the deaths. Deaths without a recovery between them form a
streak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ps_cluster.config.tasks import OnDeaths, Task
from ps_cluster.errors import PORT_IN_USE
from ps_cluster.launch.stages import RunLimits
from ps_cluster.system.supervisor import TaskExit

CLUSTER = "the cluster"


class RestartPolicy:
    """Counts the deaths of a streak, and decides when to start again and when to give up. A `key` names what died.

    Here it counts the deaths of a run's tasks, and in tools/fleet.py those of whole runs. `delays_s`: the delays before
    the restarts of a streak. The last one is repeated.
    """

    def __init__(self, delays_s: Sequence[float]):
        self._delays_s = delays_s
        self._deaths: Counter[Hashable] = Counter()

    def record_death(self, key: Hashable, most_restarts: float) -> float | None:
        """Count a death of `key`; return the seconds after which to start it again.

        Return None to give it up, after `most_restarts` restarts in the streak.
        """
        self._deaths[key] += 1
        if self._deaths[key] > most_restarts:
            return None
        return self._delays_s[min(self._deaths[key], len(self._delays_s)) - 1]

    def deaths(self, key: Hashable) -> int:
        """Return the number of deaths in the streak of `key`."""
        return self._deaths[key]

    def end_streak(self, key: Hashable) -> None:
        """Reset the count of deaths of `key`, which has recovered or starts from the beginning."""
        del self._deaths[key]


@dataclass
class _Streak:
    """Deaths without recovery between them, of one task or of the cluster."""

    first: TaskExit
    died: set[Task] = field(default_factory=set)
    updates: int = 0  # the highest number of applied updates at the last death
    started_s: float = 0.0  # when the task starts, or was started, after the last death


class Recovery:
    """Decides how tasks recover from death: each by itself, or all together where a death restarts the whole cluster.

    `Decisions.task_died` turns its answers into actions.
    """

    def __init__(self, limits: RunLimits, on_death: OnDeaths):
        self._stable_s = limits.stable_s
        self._on_death = on_death
        self._policy = RestartPolicy(limits.restart_delays_s)
        self._streaks: dict[Hashable, _Streak] = {}

    def restarts_all(self, death: TaskExit) -> bool:
        """Return whether this death restarts all training tasks."""
        # A worker whose port is taken needs another address, which the others only learn by a restart.
        return self._on_death[death.task.type].whole_cluster or death.exit_code == PORT_IN_USE

    def record_death(self, death: TaskExit, updates: int, now_s: float, silent_s: float = 0.0) -> float | None:
        """Count a death; return the seconds after which to start again, None to give up.

        Args:
          updates: the highest number of updates that were ever applied. Two deaths of the cluster belong to one streak if no
            new update came between them, however long that took. For a single task, the time that it lived decides.
          silent_s: the seconds without an update at the end of the task's life; they do not count as life.
        """
        key = self._key(death)
        streak = self._streaks.get(key)
        if streak is not None:
            lived_s = now_s - silent_s - streak.started_s
            has_recovered = updates > streak.updates if key == CLUSTER else lived_s > self._stable_s
        if streak is None or has_recovered:
            streak = self._streaks[key] = _Streak(death)
            self._policy.end_streak(key)
        streak.died.add(death.task)
        streak.updates = updates
        delay_s = self._policy.record_death(key, self._on_death[death.task.type].restarts)
        streak.started_s = now_s + (delay_s or 0.0)
        return delay_s

    def first_cause(self, death: TaskExit) -> str:
        """Return the first death of the streak to which this one belongs, on one line."""
        key = self._key(death)
        return f"{self._streaks[key].first} (given up after {self._policy.deaths(key) - 1} restarts)"

    def others_died(self, task: Task) -> bool:
        """Return whether, in the streak of the cluster, another task of this type died too.

        Then the machine or memory of this task is not the cause, and giving this task up would not help the cluster.
        """
        streak = self._streaks.get(CLUSTER) if self._on_death[task.type].whole_cluster else None
        return streak is not None and any(other.type == task.type and other != task for other in streak.died)

    def forgive(self, task: Task) -> None:
        """Reset the count of deaths of the cluster, because it continues without `task`."""
        if self._on_death[task.type].whole_cluster:
            self._streaks.pop(CLUSTER, None)  # the next death begins a new streak

    def _key(self, death: TaskExit) -> Hashable:
        return CLUSTER if self.restarts_all(death) else death.task


def delay_text(delay_s: float) -> str:
    """Return " in 2 s", or nothing for no delay."""
    return f" in {delay_s:g} s" if delay_s else ""
