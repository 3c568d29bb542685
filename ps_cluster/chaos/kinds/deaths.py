"""Tasks that are killed or stopped by a signal."""

from __future__ import annotations

from ps_cluster.catalogue.task_types import OnDeaths
from ps_cluster.chaos.kind import FaultKind, Injection, Scene
from ps_cluster.chaos.signs import signs_after_deaths


class Death(FaultKind):
    """A kind that comes to the death of its victims, of which the launcher has a table."""

    def whole_cluster(self, on_death: OnDeaths) -> bool:
        return any(on_death[victim].whole_cluster for victim in self.victims)


class Signalled(Death):
    """One signal to one task of each of these types, within a millisecond."""

    def __init__(self, name: str, victims: tuple[str, ...], signal: int):
        self.name, self.victims, self._signal = name, victims, signal

    def inject(self, scene: Scene) -> Injection:
        began = scene.now()
        signs = signs_after_deaths(scene.victims, scene.last_row, began, whole_cluster=scene.whole_cluster)
        for pid in scene.victims.values():
            scene.kill(pid, self._signal)
        return Injection(began, signs)
