"""Limit a task's memory or CPU by a control group, which the user must be allowed to make."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence

from ps_cluster.catalogue.task_types import TRAINING_TYPES, WORKER, Task
from ps_cluster.chaos.kind import ChaosFailed, FaultKind, Injection, Run, Scene
from ps_cluster.chaos.kinds.deaths import Death
from ps_cluster.chaos.limited_group import Limit, limited, why_not
from ps_cluster.chaos.signs import TrainingGoesOn, WorkerGoesOn, signs_after_deaths

KILLED_WITHIN_S = 30.0
# Shorter than the launcher's limit for a silent worker: the worker is slow, not dead.
THROTTLED_S = 6.0

NO_MEMORY = Limit(
    "memory",
    version_2={"memory.max": "1048576", "memory.swap.max": "0"},
    version_1={"memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "1048576"},
)
FIVE_PERCENT = Limit(
    "cpu",
    version_2={"cpu.max": "5000 100000"},
    version_1={"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "5000"},
)


class OutOfMemory(Death):
    """A worker is killed. Its replacement may use 1 MB more than it starts with, so the kernel kills it as it grows.

    A worker that has trained for a while asks for no more memory, and its memory stays counted in its first group.
    """

    name = "out of memory"
    victims = (WORKER,)

    def why_not(self, run: Run) -> str | None:
        return why_not(NO_MEMORY)

    def inject(self, scene: Scene) -> Injection:
        ((worker, before),) = scene.victims.items()
        scene.kill(before, signal.SIGKILL)
        pid = scene.wait_for_next(worker)
        began = scene.now()
        signs = signs_after_deaths({worker: pid}, scene.last_row, began, whole_cluster=scene.whole_cluster)
        with limited(pid, NO_MEMORY) as group:
            lived = f"{worker} (pid {pid}) got no more memory, and the kernel did not kill it"
            scene.wait_for(lambda: group.count("oom_kill") > 0, KILLED_WITHIN_S, lived)
        return Injection(began, signs)


class Throttled(FaultKind):
    """Any one task gets 5 % of a CPU for a while. No process may die of it."""

    name = "throttle"

    def choose(self, source: random.Random, tasks: Sequence[Task]) -> tuple[Task, ...]:
        return (source.choice([task for task in tasks if task.type in TRAINING_TYPES]),)

    def why_not(self, run: Run) -> str | None:
        return why_not(FIVE_PERCENT)

    def inject(self, scene: Scene) -> Injection:
        ((task, pid),) = scene.victims.items()
        with limited(pid, FIVE_PERCENT) as group:
            scene.wait(THROTTLED_S)
            if group.count("nr_throttled") == 0:
                raise ChaosFailed(f"{task} was to get 5 % of a processor, and the kernel never held it back")
        ended = scene.now()
        return Injection(ended, [WorkerGoesOn(task, ended) if task.type == WORKER else TrainingGoesOn(ended)])


OUT_OF_MEMORY = OutOfMemory()
THROTTLED = Throttled()
