"""Inject faults with control groups, which limit the memory or the processor time of a task."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ps_cluster.config.tasks import TRAINING_TYPES, WORKER, Task
from ps_cluster.tools.chaos.control_group import FIVE_PERCENT, NO_MEMORY, count_in, limited, why_no_limit
from ps_cluster.tools.chaos.kind import ChaosFailed, Death, Injection, Lasting, Run, Scene

NEXT_WITHIN_S = 30.0  # until the replacement of a process runs; a stopped process counts as dead after 5 s
KILLED_WITHIN_S = 30.0
THROTTLED_S = 6.0  # shorter than the launcher's limit for a silent worker: the worker is slow, not dead


class OutOfMemory(Death):
    """A fault that kills a worker, and limits the memory of its replacement so much that the kernel kills it too.

    The replacement may use only 1 MB more than at its start. A worker that has trained for a while asks for no more
    memory, so it would survive this limit.
    """

    name = "out of memory"
    victims = (WORKER,)

    def why_not(self, run: Run) -> str | None:
        return why_no_limit(NO_MEMORY)

    def inject(self, scene: Scene) -> Injection:
        ((worker, before),) = scene.victims.items()
        scene.kill(before, signal.SIGKILL)

        def newest() -> int:
            return scene.run.running().get(worker, before)

        scene.wait_for(lambda: newest() != before, NEXT_WITHIN_S, f"no new process of {worker}")
        pid = newest()
        began = scene.now()
        signs = scene.signs_after_deaths(began, {worker: pid})
        with limited(pid, NO_MEMORY) as group:
            problem = f"{worker} (pid {pid}) got no more memory, but the kernel did not kill it"
            scene.wait_for(lambda: count_in(group, "oom_kill") > 0, KILLED_WITHIN_S, problem)
        return Injection(began, signs)


class Throttled(Lasting):
    """A fault that limits a chief, ps or worker to 5 % of a processor for a while. All processes have to survive."""

    name = "throttle"
    all_survive = True
    seconds = THROTTLED_S

    def choose(self, source: random.Random, tasks: Sequence[Task]) -> tuple[Task, ...]:
        return (source.choice([task for task in tasks if task.type in TRAINING_TYPES]),)

    def why_not(self, run: Run) -> str | None:
        return why_no_limit(FIVE_PERCENT)

    @contextmanager
    def degraded(self, scene: Scene) -> Iterator[None]:
        ((task, pid),) = scene.victims.items()
        with limited(pid, FIVE_PERCENT) as group:
            yield
            if count_in(group, "nr_throttled") == 0:
                raise ChaosFailed(f"{task} should have got 5 % of a processor, but the kernel never throttled it")
