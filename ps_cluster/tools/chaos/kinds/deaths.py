"""Tasks that are killed or stopped by a signal."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from ps_cluster.config.modes import CHIEF, EVALUATOR, PS, WORKER, OnDeaths
from ps_cluster.system.fork_server import STOP_VARIABLE
from ps_cluster.tools.chaos.kind import FaultKind, FileGone, Injection, Run, Scene, TrainingBack, signs_after_deaths


class Death(FaultKind):
    """A kind that ends in the death of its victims. The launcher's table says what follows."""

    def whole_cluster(self, on_death: OnDeaths) -> bool:
        return any(on_death[victim].whole_cluster for victim in self.victims)


class Signalled(Death):
    """One signal to one task of each of these types, all within a millisecond."""

    def __init__(self, name: str, victims: tuple[str, ...], number: int):
        self.name, self.victims, self._signal = name, victims, number
        self.hosted = number == signal.SIGKILL  # only a launcher ends what is frozen

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        signs = signs_after_deaths(scene.victims, scene.last_row, began, whole_cluster=scene.whole_cluster)
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


# Stop the process that forks tasks after it has forked one and before it has reported it.


class ForkServerStopped(Death):
    """A worker is killed, and the fork of its replacement is never reported."""

    name = "fork server stopped"
    victims = (WORKER,)

    def environment(self, folder: Path) -> Mapping[str, str]:
        return {STOP_VARIABLE: str(_stop_file(folder))}

    def inject(self, scene: Scene) -> Injection:
        began, stop = scene.now(), _stop_file(scene.run.tools)
        signs = signs_after_deaths(scene.victims, scene.last_row, began, whole_cluster=scene.whole_cluster)
        stop.touch()
        for pid in scene.victims.values():
            scene.kill(pid, signal.SIGKILL)
        return Injection(began, [*signs, FileGone(stop)])


def _stop_file(folder: Path) -> Path:
    return folder / "stop-after-fork"


FORK_SERVER_STOPPED = ForkServerStopped()


# Close the terminal of a run: send SIGHUP to its launcher.


class HangUp(FaultKind):
    """The run is drained and ends with exit code 0. Resumed, it trains."""

    name = "hang up"

    def whole_cluster(self, on_death: OnDeaths) -> bool:
        return True

    def why_not(self, run: Run) -> str | None:
        return "SIGHUP is ignored here, as under nohup" if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else None

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        scene.run.hang_up()
        scene.wait_for_end(0)
        scene.run.resume()
        return Injection(began, [TrainingBack(began)])


HANG_UP = HangUp()
