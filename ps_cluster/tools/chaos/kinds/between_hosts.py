"""Inject faults of machines and of the links between them, for tasks on hosts (`chaos --hosts`)."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil

from ps_cluster.config.tasks import CHIEF, WORKER, Task
from ps_cluster.tools.chaos.hosted_run import HostedRun
from ps_cluster.tools.chaos.hosts import Host
from ps_cluster.tools.chaos.kind import FaultKind, Injection, Lasting, Run, Scene
from ps_cluster.tools.chaos.signs import TrainingContinues

CUT_S, GONE_S, BAD_S = 30.0, 15.0, 10.0
# A step of the default network moves a megabyte each way.
RATE, DELAY_MS, LOSS = "16mbit", 20.0, 0.01


class HostVanishes(FaultKind):
    """A fault in which a host vanishes without sending a packet. The other workers have to continue.

    Later, a new host with the same name and address appears.
    """

    name = "host vanishes"
    launched, hosted = False, True
    others_continue = True
    victims = (WORKER,)

    def __init__(self, seconds: float = GONE_S):
        self._seconds = seconds

    def why_not(self, run: Run) -> str | None:
        assert isinstance(run, HostedRun)
        with_workers = {place.name for task, place in run.places.items() if task.type == WORKER}
        return None if len(with_workers) > 1 else "it needs workers on two hosts"

    def inject(self, scene: Scene) -> Injection:
        run, began = scene.hosted, scene.now()
        host = run.places[next(iter(scene.victims))]
        lost, known = [task for task, place in run.places.items() if place is host], run.running()
        run.restarter.held.update(lost)
        host.vanish()
        scene.wait(self._seconds)
        host.restore()
        run.restarter.held.difference_update(lost)
        continues = TrainingContinues(began, until=scene.now())
        # A task that has just ended, and waits to be started again, has no process.
        return Injection(scene.now(), [continues, *(scene.worker_back(task, known.get(task, 0)) for task in lost)])


class TwoWorkersHit(FaultKind):
    """A fault that hits two workers. The second is killed, and has to train again while the first is unavailable."""

    launched, hosted = False, True
    others_continue = True
    victims = (WORKER, WORKER)

    def __init__(self, name: str, take_away: Callable[[Scene, Task, int], Callable[[], None]]):
        """Create a kind of fault. `take_away` makes a worker unavailable, and returns a function that undoes this."""
        self.name, self._take_away = name, take_away

    def choose(self, source: random.Random, tasks: Sequence[Task]) -> tuple[Task, ...]:
        return tuple(source.sample([task for task in tasks if task.type == WORKER], 2))

    def why_not(self, run: Run) -> str | None:
        return None if sum(task.type == WORKER for task in run.running()) > 1 else "it needs two workers"

    def inject(self, scene: Scene) -> Injection:
        (missing, pid), (other, killed) = scene.victims.items()
        began = scene.now()
        give_back = self._take_away(scene, missing, pid)
        scene.kill(killed, signal.SIGKILL)
        return Injection(began, [scene.worker_back(other, killed)], then=give_back)


def _kill_and_hold(scene: Scene, worker: Task, pid: int) -> Callable[[], None]:
    """Kill a worker and prevent its restart. Return the function that allows the restart."""
    held = scene.hosted.restarter.held
    held.add(worker)
    scene.kill(pid, signal.SIGKILL)
    return lambda: held.remove(worker)


def _silence(scene: Scene, worker: Task, pid: int) -> Callable[[], None]:
    """Stop the processes of a worker. Its connections stay open, but it does not answer, like a paused container.

    Return a function that resumes the worker.
    """
    paused = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]

    def signal_all(number: int) -> None:
        for one in paused:
            scene.kill(one, number)

    signal_all(signal.SIGSTOP)
    return lambda: signal_all(signal.SIGCONT)


class HostLink(Lasting):
    """A fault that degrades the link of the victim's host for a while, and then restores it."""

    launched, hosted = False, True

    def __init__(self, name: str, victim: str, seconds: float, degrade: Callable[[Host], None]):
        self.name, self.victims, self.seconds, self._degrade = name, (victim,), seconds, degrade

    @contextmanager
    def degraded(self, scene: Scene) -> Iterator[None]:
        (victim,) = scene.victims
        host = scene.hosted.places[victim]
        self._degrade(host)
        try:
            yield
        finally:
            host.restore()


WORKER_NEVER_BACK = TwoWorkersHit("worker never back", _kill_and_hold)
SILENT_WORKER = TwoWorkersHit("silent worker", _silence)
CUT_OFF_WORKER = HostLink("cut off worker", WORKER, CUT_S, Host.cut)
CUT_OFF_CHIEF = HostLink("cut off chief", CHIEF, CUT_S, Host.cut)
BAD_LINK = HostLink("slow and lossy link", WORKER, BAD_S, lambda host: host.slow(RATE, DELAY_MS, LOSS))
