"""Faults of machines and of the links between them: for tasks on hosts (`chaos --hosts`)."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from typing import cast

import psutil

from ps_cluster.config.modes import CHIEF, WORKER, Task
from ps_cluster.tools.chaos.kind import (
    FaultKind,
    Hosted,
    Injection,
    Run,
    Scene,
    Sign,
    TrainingGoesOn,
    WorkerBack,
    WorkerGoesOn,
    worker_pids,
)

CUT_S, GONE_S, BAD_S = 30.0, 15.0, 10.0
# A step of the default network moves a megabyte each way.
RATE, DELAY_MS, LOSS = "16mbit", 20.0, 0.01


class _BetweenHosts(FaultKind):
    launched, hosted = False, True


class HostVanishes(_BetweenHosts):
    """A host is lost, and no connection says so. The others go on. Later another host with its name and address starts."""

    name = "host vanishes"
    others_go_on = True
    victims = (WORKER,)

    def __init__(self, seconds: float = GONE_S):
        self._seconds = seconds

    def inject(self, scene: Scene) -> Injection:
        run, began = _hosted(scene), scene.now()
        host = run.host_of(next(iter(scene.victims)))
        lost = run.tasks_on(host)
        known = run.running()
        run.hold(lost)
        host.vanish()
        scene.wait(self._seconds)
        host.restore()
        run.release(lost)
        goes_on = TrainingGoesOn(began, until=scene.now())
        return Injection(scene.now(), [goes_on, *(_back(scene, task, known) for task in lost)])


class _OfTwoWorkers(_BetweenHosts):
    """Two different workers are hit; the second has to train again while the first is missing."""

    others_go_on = True
    victims = (WORKER, WORKER)

    def choose(self, source: random.Random, tasks: Sequence[Task]) -> tuple[Task, ...]:
        return tuple(source.sample([task for task in tasks if task.type == WORKER], 2))

    def why_not(self, run: Run) -> str | None:
        return None if sum(task.type == WORKER for task in run.running()) > 1 else "it needs two workers"


class WorkerNeverBack(_OfTwoWorkers):
    """Two workers are killed, and only the second comes back."""

    name = "worker never back"

    def inject(self, scene: Scene) -> Injection:
        run, began = _hosted(scene), scene.now()
        missing, other = scene.victims
        run.hold([missing])
        for pid in scene.victims.values():
            scene.kill(pid, signal.SIGKILL)
        return Injection(began, [_back(scene, other, scene.victims)], then=lambda: run.release([missing]))


class SilentWorker(_OfTwoWorkers):
    """The first worker is stopped like a paused container: its connections stay, and it answers nothing. The second is
    killed.
    """

    name = "silent worker"

    def inject(self, scene: Scene) -> Injection:
        (_, pid), (other, killed) = scene.victims.items()
        began, paused = scene.now(), [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]

        def signal_all(number: int) -> None:
            for one in paused:
                scene.kill(one, number)

        signal_all(signal.SIGSTOP)
        scene.kill(killed, signal.SIGKILL)
        return Injection(began, [_back(scene, other, scene.victims)], then=lambda: signal_all(signal.SIGCONT))


class CutOff(_BetweenHosts):
    """The link of the victim's host is cut for a while, and restored."""

    def __init__(self, victim: str, seconds: float = CUT_S):
        self.name, self.victims, self._seconds = f"cut off {victim}", (victim,), seconds

    def inject(self, scene: Scene) -> Injection:
        (victim,) = scene.victims
        host = _hosted(scene).host_of(victim)
        host.cut()
        scene.wait(self._seconds)
        host.restore()
        return Injection(scene.now(), [_goes_on(victim, scene.now())])


class BadLink(_BetweenHosts):
    """The link of a worker's host is slow and long, and loses packets."""

    name = "slow and lossy link"
    victims = (WORKER,)

    def __init__(self, seconds: float = BAD_S):
        self._seconds = seconds

    def inject(self, scene: Scene) -> Injection:
        (victim,) = scene.victims
        host = _hosted(scene).host_of(victim)
        host.slow(RATE, DELAY_MS, LOSS)
        scene.wait(self._seconds)
        host.restore()
        return Injection(scene.now(), [_goes_on(victim, scene.now())])


def _hosted(scene: Scene) -> Hosted:
    """Return the run, which is on hosts: these kinds are for no other."""
    return cast(Hosted, scene.run)


def _back(scene: Scene, worker: Task, pids: Mapping[Task, int]) -> Sign:
    """Return the sign that a process of this worker that is not among `pids` takes part."""
    return WorkerBack(worker, worker_pids(scene.last_row or {"workers": []}, worker.index) | {pids[worker]})


def _goes_on(victim: Task, since: float) -> Sign:
    return WorkerGoesOn(victim, since) if victim.type == WORKER else TrainingGoesOn(since)


HOST_VANISHES = HostVanishes()
WORKER_NEVER_BACK = WorkerNeverBack()
SILENT_WORKER = SilentWorker()
CUT_OFF_WORKER = CutOff(WORKER)
CUT_OFF_CHIEF = CutOff(CHIEF)
BAD_LINK = BadLink()
