"""Inject faults of the link between all tasks of a run, in the run's private computer network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ps_cluster.system.private_network import NAMESPACE_ARGV
from ps_cluster.tools.chaos.kind import Lasting, Run, Scene
from ps_cluster.tools.chaos.namespaces import NETWORK, NotAllowed, inside, run_in

CUT_S, SLOW_S = 3.0, 6.0
# A step of the default network moves a megabyte each way. A packet on this link has up to 64 KiB.
RATE, BURST, LATENCY = "16mbit", "128kb", "200ms"


class RunLink(Lasting):
    """A fault that degrades the link between all tasks of a run for a while.

    `degrade` and `restore` are the command lines that degrade and restore the link. They run in the run's network.
    """

    def __init__(self, name: str, seconds: float, degrade: tuple[str, ...], restore: tuple[str, ...]):
        self.name, self.seconds, self._degrade, self._restore = name, seconds, degrade, restore

    def why_not(self, run: Run) -> str | None:
        try:
            with self._degraded(run):
                return None
        except NotAllowed as reason:
            return f"the network link of the run can't be changed: {reason}"

    def degraded(self, scene: Scene) -> AbstractContextManager[None]:
        return self._degraded(scene.run)

    @contextmanager
    def _degraded(self, run: Run) -> Iterator[None]:
        some_task = next(iter(run.running().values()))  # all tasks are in the same network
        with inside(some_task, NETWORK) as network:
            run_in(network, *self._degrade)
            try:
                yield
            finally:
                run_in(network, *self._restore)


# The interface is down, so no task reaches another one.
LINK_CUT = RunLink("link cut", CUT_S, (*NAMESPACE_ARGV, "loopback", "down"), (*NAMESPACE_ARGV, "loopback", "up"))
# All tasks together send at most `RATE`.
LINK_SLOW = RunLink(
    "link slow",
    SLOW_S,
    ("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", RATE, "burst", BURST, "latency", LATENCY),
    ("tc", "qdisc", "del", "dev", "lo", "root"),
)
