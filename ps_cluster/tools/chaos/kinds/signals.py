"""Inject faults with signals: kill or stop tasks, stop the fork server, or close the terminal."""

from __future__ import annotations

import contextlib
import signal

import psutil

from ps_cluster.config.tasks import CHIEF, EVALUATOR, PS, WORKER, OnDeaths
from ps_cluster.launch import fork_server_program
from ps_cluster.tools.chaos.kind import Death, FaultKind, Injection, Run, Scene
from ps_cluster.tools.chaos.signs import Condition, TrainingBack


class Signalled(Death):
    """A fault that sends the same signal to one task of each type in `victims`, to all within a millisecond."""

    def __init__(self, name: str, victims: tuple[str, ...], number: int):
        self.name, self.victims, self._signal = name, victims, number
        self.hosted = number == signal.SIGKILL  # Only a launcher kills frozen tasks.

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        signs = scene.signs_after_deaths(began)
        for pid in scene.victims.values():
            scene.kill(pid, self._signal)
        return Injection(began, signs)


KILLED_WORKER = Signalled("kill worker", (WORKER,), signal.SIGKILL)
FROZEN_WORKER = Signalled("freeze worker", (WORKER,), signal.SIGSTOP)
KILLED_EVALUATOR = Signalled("kill evaluator", (EVALUATOR,), signal.SIGKILL)
KILLED_PS = Signalled("kill ps", (PS,), signal.SIGKILL)
FROZEN_PS = Signalled("freeze ps", (PS,), signal.SIGSTOP)
KILLED_CHIEF = Signalled("kill chief", (CHIEF,), signal.SIGKILL)
FROZEN_CHIEF = Signalled("freeze chief", (CHIEF,), signal.SIGSTOP)
KILLED_WORKER_AND_PS = Signalled("kill worker+ps", (WORKER, PS), signal.SIGKILL)
KILLED_PS_AND_CHIEF = Signalled("kill ps+chief", (PS, CHIEF), signal.SIGKILL)


class ForkServerStopped(Death):
    """A fault that stops the process that forks tasks, and then kills a worker.

    The launcher has to replace the worker although this process does not answer.
    """

    name = "fork server stopped"
    victims = (WORKER,)

    def why_not(self, run: Run) -> str | None:
        return None if _fork_servers(run) else "the launcher has no process that forks tasks"

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        stopped = _fork_servers(scene.run)
        for server in stopped:
            scene.kill(server.pid, signal.SIGSTOP)
        for pid in scene.victims.values():
            scene.kill(pid, signal.SIGKILL)
        gone = Condition(
            "the stopped fork server is still there", lambda _: not any(server.is_running() for server in stopped)
        )
        return Injection(began, [*scene.signs_after_deaths(began), gone])


def _fork_servers(run: Run) -> list[psutil.Process]:
    """Return the fork servers of a run, which are children of the launcher; empty if there is no launcher."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(run.pid).children():
            with contextlib.suppress(psutil.Error):
                if fork_server_program.__name__ in child.cmdline():
                    found.append(child)
    return found


class HangUp(FaultKind):
    """A fault that closes the terminal of a run.

    The run has to drain, to end with exit code 0, and to train again when it is resumed.
    """

    name = "hang up"

    def restarts_whole_cluster(self, on_death: OnDeaths) -> bool:
        return True

    def why_not(self, run: Run) -> str | None:
        return "SIGHUP is ignored here, as under nohup" if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else None

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        scene.launched.hang_up()
        scene.wait_for_end(0)
        scene.launched.resume()
        return Injection(began, [TrainingBack(began)])
