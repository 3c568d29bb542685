"""All processes on one machine, whose cores they share: what a run on one machine is checked against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ps_cluster.simulation.costs import Cluster, Costs
from ps_cluster.simulation.draws import gammas
from ps_cluster.simulation.events import Cores, Process
from ps_cluster.simulation.training import Training

Serve = Callable[[int, int], None]
"""(worker, server) → its request is served there."""


class OneMachine(Training):
    """No network; what takes processor time takes it of `cluster.cores`.

    As far as a worker's processor time is more than the wall seconds of its computation, it was spent in what the costs call
    delays: it comes before the pull here, and the delays are shorter by as much.
    """

    def __init__(self, costs: Costs, cluster: Cluster):
        around = max(0.0, costs.worker_cpu_seconds - costs.compute_seconds)
        super().__init__(_without_processor_time(costs, around), cluster)
        servers = cluster.servers
        self._cores = Cores(self.events, cluster.cores - costs.chief_background_cores)
        self._chief = Process(self._cores)
        self._servers = [Process(self._cores) for _ in range(servers)]
        self._pulls = gammas(self.random, costs.pull_seconds(servers), costs.server_cv)
        self._pushes = gammas(self.random, costs.push_seconds(servers), costs.server_cv)
        self._around = around
        self._computations = gammas(self.random, costs.worker_cpu_seconds - around, costs.compute_cv)
        self._idle = max(0.0, costs.compute_seconds - costs.worker_cpu_seconds)
        self._unserved = [0] * cluster.workers

    def ask_chief(self, then: Callable[[], None]) -> None:
        self._chief.do(self.costs.chief_seconds, then)

    def pull(self, worker: int) -> None:
        self._cores.run(self._around, partial(self._pull, worker))

    def _pull(self, worker: int) -> None:
        delay = self.costs.pull_delay_seconds
        self.events.after(delay, self._request, worker, self._pulls, self.read, self._compute)

    def _request(self, worker: int, seconds: Iterator[float], serve: Serve, then: Callable[[int], None]) -> None:
        """`serve(worker, server)` when each parameter server has come to it, `then(worker)` when all have."""
        self._unserved[worker] = len(self._servers)
        for index, server in enumerate(self._servers):
            server.do(next(seconds), partial(self._served, worker, index, serve, then))

    def _served(self, worker: int, server: int, serve: Serve, then: Callable[[int], None]) -> None:
        serve(worker, server)
        self._unserved[worker] -= 1
        if not self._unserved[worker]:
            then(worker)

    def _compute(self, worker: int) -> None:
        self._cores.run(next(self._computations), partial(self._computed, worker, self.events.now))

    def _computed(self, worker: int, started: float) -> None:
        seconds = self.events.now - started + self._idle
        self.events.after(self._idle, self.compute_and_wait, worker, seconds, self._push)

    def _push(self, worker: int) -> None:
        delay = self.costs.push_delay_seconds
        self.events.after(delay, self._request, worker, self._pushes, self.take, self._taken_by_all)

    def _taken_by_all(self, worker: int) -> None:
        self.ended(worker, self.events.now)
        self.go_on(worker)

    def admit(self, worker: int) -> None:
        self.events.after(self.costs.pull_delay_seconds, self._look, worker)

    def _look(self, worker: int) -> None:
        """Takes processor time of the parameter server's process, again and again while the worker has to wait."""
        self._cores.run(self.costs.look_cpu_seconds, partial(self._looked, worker))

    def _looked(self, worker: int) -> None:
        if self.may_take_part(worker):
            self.dispatch(worker)
        else:
            self.events.after(self.costs.look_every_seconds, self._look, worker)


def _without_processor_time(costs: Costs, seconds: float) -> Costs:
    """The costs with delays that are shorter by so many seconds a step, as far as they are that long."""
    return (
        costs.with_delays_times(max(0.0, 1 - seconds / costs.delay_seconds))
        if seconds and costs.delay_seconds
        else costs
    )
