"""Simulate all processes on one machine with shared cores, to compare the simulation with a run on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ps_cluster.launch.pinning import own_cores
from ps_cluster.tools.simulate.costs import Costs, SimulatedCluster
from ps_cluster.tools.simulate.drawing import gammas
from ps_cluster.tools.simulate.events import Cores, Process
from ps_cluster.tools.simulate.training import SimulatedTraining

CHIEF_POLLS_EVERY_S = 0.25  # POLL_S in ps_cluster/training/chief.py

Serve = Callable[[int, int], None]
"""A function that serves a request on a server. Its arguments are the indices of the worker and of the server."""


class OneMachine(SimulatedTraining):
    """Simulates a run on a single machine, with no computer network between its tasks.

    All CPU time is taken from `cluster.cores`. The measured CPU time of a worker's step may be longer than the wall
    time of its computation. The simulation assumes that the additional CPU time was spent in the delays of the step, on
    calls and on packing messages. If the delays are too short for that, the rest is assigned to the computation, which
    then runs in more than one thread.
    """

    def __init__(self, costs: Costs, cluster: SimulatedCluster):
        more = max(0.0, costs.worker_cpu_seconds - costs.compute_seconds)
        work_in_delays = min(1.0, more / costs.delay_seconds) if costs.delay_seconds else 0.0
        super().__init__(costs.with_delays_times(1 - work_in_delays), cluster)
        self._pull_work = work_in_delays * (costs.step_gap_seconds + costs.pull_delay_seconds)
        self._push_work = work_in_delays * costs.push_delay_seconds
        computing = costs.worker_cpu_seconds - self._pull_work - self._push_work
        self._threads = max(1.0, computing / costs.compute_seconds)
        self._computations = gammas(self.random, computing / self._threads, costs.compute_cv)
        self._idle = max(0.0, costs.compute_seconds - computing)

        cores = range(cluster.cores or 1)
        own = [
            tuple(own_cores(worker, cluster.workers, cores) if cluster.pinned else cores)
            for worker in range(cluster.workers)
        ]
        # Cores without a pinned worker are not simulated: workers that wait for a server leave it enough cores.
        parts = {part: Cores(self.events, len(part)) for part in dict.fromkeys(own)}
        self._of_worker = [parts[part] for part in own]
        self._all = list(parts.values())
        self._chief, self._chief_polling = Process(self._all), Process(self._all)
        self._servers = [Process(self._all) for _ in range(cluster.servers)]
        self._pulls = gammas(self.random, costs.pull_seconds(cluster.servers), costs.server_cv)
        self._pushes = gammas(self.random, costs.push_seconds(cluster.servers), costs.server_cv)
        self._unserved = [0] * cluster.workers
        self._poll_as_chief()

    def _poll_as_chief(self) -> None:
        """Simulate the chief's background thread, which regularly checks the cluster and writes progress."""
        if self.costs.chief_background_cores:
            self._chief_polling.do(CHIEF_POLLS_EVERY_S * self.costs.chief_background_cores, lambda: None)
            self.events.after(CHIEF_POLLS_EVERY_S, self._poll_as_chief)

    def ask_chief(self, then: Callable[[], None]) -> None:
        self._chief.do(self.costs.chief_seconds, then)

    def pull(self, worker: int) -> None:
        self._of_worker[worker].run(self._pull_work, partial(self._pull, worker))

    def _pull(self, worker: int) -> None:
        delay = self.costs.pull_delay_seconds
        self.events.after(delay, self._request, worker, self._pulls, self.read, self._compute)

    def _request(self, worker: int, seconds: Iterator[float], serve: Serve, then: Callable[[int], None]) -> None:
        """Send a worker's request to all servers, each of which needs `next(seconds)` CPU seconds for it.

        Call `serve(worker, server)` when a server has finished, and `then(worker)` after the last server.
        """
        self._unserved[worker] = len(self._servers)
        for index, server in enumerate(self._servers):
            server.do(next(seconds), partial(self._served, worker, index, serve, then))

    def _served(self, worker: int, server: int, serve: Serve, then: Callable[[int], None]) -> None:
        serve(worker, server)
        self._unserved[worker] -= 1
        if not self._unserved[worker]:
            then(worker)

    def _compute(self, worker: int) -> None:
        computed = partial(self._computed, worker, self.events.now)
        self._of_worker[worker].run(next(self._computations), computed, self._threads)

    def _computed(self, worker: int, started: float) -> None:
        seconds = self.events.now - started + self._idle
        self.events.after(self._idle, self.end_computation, worker, seconds, self._push)

    def _push(self, worker: int) -> None:
        self._of_worker[worker].run(self._push_work, partial(self._send, worker))

    def _send(self, worker: int) -> None:
        delay = self.costs.push_delay_seconds
        self.events.after(delay, self._request, worker, self._pushes, self.take, self._taken_by_all)

    def _taken_by_all(self, worker: int) -> None:
        self.ended(worker, self.events.now)
        self.go_on(worker)
