"""A kind of fault that the package knows nothing of: a worker is stopped for a moment."""

import os
import signal

from ps_cluster.tools.chaos.kind import FaultKind, Injection
from ps_cluster.tools.chaos.signs import TrainingContinues


class Toy(FaultKind):
    victims = ("worker",)

    def inject(self, scene):
        for pid in scene.victims.values():
            os.kill(pid, signal.SIGSTOP)
        scene.wait(1.0)
        for pid in scene.victims.values():
            os.kill(pid, signal.SIGCONT)
        return Injection(scene.now(), [TrainingContinues(scene.now())])
