"""Faults of the link between all tasks of a run, in the run's own network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ps_cluster.system.private_network import NAMESPACE_ARGV
from ps_cluster.tools.chaos.kind import Lasting, Run, Scene
from ps_cluster.tools.chaos.namespaces import NETWORK, NotAllowed, inside, program

CUT_S, SLOW_S = 3.0, 6.0
# A step of the default network moves a megabyte each way. A packet on this link has up to 64 KiB.
RATE, BURST, LATENCY = "16mbit", "128kb", "200ms"


class _Link(Lasting):
    @abstractmethod
    def programs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the programs that degrade and restore the link in the run's network. Raises NotAllowed without them."""

    def why_not(self, run: Run) -> str | None:
        try:
            with self._degraded(run):
                return None
        except NotAllowed as reason:
            return f"the link of the run's network can't be touched: {reason}"

    def degraded(self, scene: Scene) -> AbstractContextManager[None]:
        return self._degraded(scene.run)

    @contextmanager
    def _degraded(self, run: Run) -> Iterator[None]:
        some_task = next(iter(run.running().values()))  # all tasks are in the same network
        degrade, restore = self.programs()
        with inside(some_task, NETWORK) as call:
            call(*degrade)
            try:
                yield
            finally:
                call(*restore)


class LinkCut(_Link):
    """The interface is down, so no task reaches another one."""

    name = "link cut"
    seconds = CUT_S

    def programs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (*NAMESPACE_ARGV, "loopback", "down"), (*NAMESPACE_ARGV, "loopback", "up")


class LinkSlow(_Link):
    """All tasks together send at most `RATE`."""

    name = "link slow"
    seconds = SLOW_S

    def programs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        rate = ("tbf", "rate", RATE, "burst", BURST, "latency", LATENCY)
        control = (program("tc"), "qdisc")
        return (*control, "add", "dev", "lo", "root", *rate), (*control, "del", "dev", "lo", "root")
