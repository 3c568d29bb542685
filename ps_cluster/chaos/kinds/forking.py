"""Stop the process that forks tasks after it has forked one and before it has reported it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from ps_cluster.catalogue.task_types import WORKER
from ps_cluster.chaos.kind import Injection, Scene
from ps_cluster.chaos.kinds.deaths import Death
from ps_cluster.chaos.signs import FileGone, signs_after_deaths
from ps_cluster.processes.fork_server import STOP_VARIABLE


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
