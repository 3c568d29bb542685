"""Cut or slow the link between all tasks, in the run's own network."""

from __future__ import annotations

import shutil

from ps_cluster.system.isolation import NAMESPACE_ARGV
from ps_cluster.tools.chaos.kind import FaultKind, Injection, NotAllowed, Run, Scene, TrainingGoesOn
from ps_cluster.tools.chaos.training_run import NETWORK, inside

CUT_S = 3.0
SLOW_S = 6.0
# A step of the default network moves a megabyte each way. A packet on this link has up to 64 KiB.
RATE, BURST, LATENCY = "16mbit", "128kb", "200ms"

_CUT, _JOIN = (*NAMESPACE_ARGV, "loopback", "down"), (*NAMESPACE_ARGV, "loopback", "up")


class _Link(FaultKind):
    """The link is worse for some seconds; then training continues."""

    seconds: float

    def worsen(self) -> tuple[str, ...]:
        """Return the program that worsens the link, run in the network. Raises NotAllowed where there is none."""
        raise NotImplementedError

    def mend(self) -> tuple[str, ...]:
        """Return the program that restores the link."""
        raise NotImplementedError

    def why_not(self, run: Run) -> str | None:
        try:
            with inside(_anyone(run), NETWORK) as call:
                call(*self.worsen())
                call(*self.mend())
        except NotAllowed as reason:
            return f"the link of the run's network can't be touched: {reason}"
        return None

    def inject(self, scene: Scene) -> Injection:
        with inside(_anyone(scene.run), NETWORK) as call:
            call(*self.worsen())
            try:
                scene.wait(self.seconds)
            finally:
                call(*self.mend())
        return Injection(scene.now(), [TrainingGoesOn(scene.now())])


class LinkCut(_Link):
    """No task reaches any other: the interface is down."""

    name = "link cut"
    seconds = CUT_S

    def worsen(self) -> tuple[str, ...]:
        return _CUT

    def mend(self) -> tuple[str, ...]:
        return _JOIN


class LinkSlow(_Link):
    """All tasks together send at most RATE."""

    name = "link slow"
    seconds = SLOW_S

    def worsen(self) -> tuple[str, ...]:
        rate = ("tbf", "rate", RATE, "burst", BURST, "latency", LATENCY)
        return (*_traffic_control(), "add", "dev", "lo", "root", *rate)

    def mend(self) -> tuple[str, ...]:
        return (*_traffic_control(), "del", "dev", "lo", "root")


def _traffic_control() -> tuple[str, ...]:
    if (program := shutil.which("tc")) is None:
        raise NotAllowed("there is no program `tc` (package iproute2)")
    return program, "qdisc"


def _anyone(run: Run) -> int:
    """Return the pid of any task: all are in the same network."""
    return next(iter(run.running().values()))


LINK_CUT = LinkCut()
LINK_SLOW = LinkSlow()
