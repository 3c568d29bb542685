"""Decide which processes are stuck and to be killed: stopped for too long, or silent. Know who outlives SIGKILL."""

from __future__ import annotations

from collections.abc import Mapping

from ps_cluster.catalogue.task_types import WORKER, Task
from ps_cluster.cluster.events_and_actions import Action, Actions, Kill, Notice, ProgressSeen, TimePassed, WriteStacks
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.silence import SilenceWatch, Silent
from ps_cluster.config import RunConfig
from ps_cluster.run.log_events import TASK_FROZEN, WORKER_SILENT


class Stuck:
    """Remembers when each process froze, who is silent, and when each was killed.

    Attributes:
      silences: the worker processes that were killed because they were silent.
    """

    def __init__(self, config: RunConfig, limits: Limits, now_s: float):
        self._limits = limits
        self._silence = SilenceWatch(config, limits, now_s)
        self._frozen_since: dict[Task, float] = {}
        self._killed_at: dict[tuple[Task, int], float] = {}
        self.silences: list[Silent] = []

    def see(self, event: ProgressSeen, now_s: float) -> None:
        """Read the row for the work of each worker."""
        self._silence.see(event.row, event.workers, now_s)

    def forget_work(self) -> None:
        """Forget what each worker did. Call it when all processes start again."""
        self._silence.forget()

    def silent_s(self, pid: int) -> float:
        """Return the seconds at the end of its life for which this process was silent; 0 for any other."""
        return sum(silent.seconds for silent in self.silences if silent.pid == pid)

    def end_frozen(self, event: TimePassed, now_s: float) -> Actions:
        """Kill processes that were stopped (SIGSTOP) for too long, so that they can't wake up during a recovery."""
        self._frozen_since = {task: self._frozen_since.get(task, now_s) for task in event.frozen}
        actions: list[Action] = []
        for task, since in list(self._frozen_since.items()):
            if now_s - since >= self._limits.frozen_s:
                line = TASK_FROZEN(f"{task} has been frozen for {self._limits.frozen_s:.0f} s: ending it")
                actions.append(Notice(line))
                actions += self.end(task, event, now_s)
                del self._frozen_since[task]
        return tuple(actions)

    def end_silent(self, event: TimePassed, now_s: float) -> Actions:
        """Kill a worker that is silent while others go on: it is then started again, and others take its steps."""
        if (silent := self._silence.longest()) is None:
            return ()
        task = Task(WORKER, silent.worker)
        if event.pids.get(task) != silent.pid:
            return ()  # it ended since the last row
        self.silences.append(silent)
        line = WORKER_SILENT(
            f"{task} (pid {silent.pid}) is silent: no update for {silent.seconds:.0f} s, after {silent.updates}; "
            "its stacks are in its log; ending it"
        )
        return (WriteStacks((task,)), Notice(line), *self.end(task, event, now_s))

    def end(self, task: Task, event: TimePassed, now_s: float) -> Actions:
        """Kill a task's process, if there is one. If it outlives that, `unkillable` returns it later."""
        if (pid := event.pids.get(task)) is None:
            return ()
        self._killed_at.setdefault((task, pid), now_s)
        return (Kill(task),)

    def unkillable(self, pids: Mapping[Task, int], now_s: float) -> list[tuple[Task, int]]:
        """Return the tasks, with their pids, that were killed and are still there. Each is returned once.

        Args:
          pids: of all tasks that run now.
        """
        self._killed_at = {key: at for key, at in self._killed_at.items() if pids.get(key[0]) == key[1]}
        found = [key for key, at in self._killed_at.items() if now_s - at > self._limits.kill_s]
        for key in found:
            del self._killed_at[key]
        return found
