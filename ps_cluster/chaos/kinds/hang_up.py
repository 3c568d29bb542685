"""Close the terminal of a run: send SIGHUP to its launcher."""

from __future__ import annotations

import signal

from ps_cluster.catalogue.task_types import OnDeaths
from ps_cluster.chaos.kind import FaultKind, Injection, Run, Scene
from ps_cluster.chaos.signs import TrainingBack


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
