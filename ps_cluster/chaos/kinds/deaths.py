"""Tasks that are killed or stopped by a signal."""

from __future__ import annotations

import signal

from ps_cluster.catalogue.task_types import CHIEF, EVALUATOR, PS, WORKER, OnDeaths
from ps_cluster.chaos.kind import FaultKind, Injection, Scene
from ps_cluster.chaos.signs import signs_after_deaths


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
