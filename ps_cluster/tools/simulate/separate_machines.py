"""Simulate one machine for each process: queues at the processors and links of the parameter servers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ps_cluster.tools.simulate.costs import Costs, SimulatedCluster
from ps_cluster.tools.simulate.drawing import gammas
from ps_cluster.tools.simulate.training import SimulatedTraining


class SeparateMachines(SimulatedTraining):
    """Simulates a cluster with a machine for each process.

    One numpy operation serves a worker's request in the queues of all servers. This is exact. The messages of a request
    arrive at all servers at the same time, so all queues have the same order, and Lindley's recursion
    `free = max(free, arrival) + service` (Lindley 1952) holds for all queues at once. The servers differ only in how
    long each takes.
    """

    def __init__(self, costs: Costs, cluster: SimulatedCluster):
        super().__init__(costs, cluster)
        servers, network = cluster.servers, cluster.network
        self._latency = network.latency_seconds
        self._shard_seconds = network.seconds(costs.wire_bytes / servers)
        self._all_seconds = network.seconds(costs.wire_bytes)
        # [i]: the seconds for which a worker's link is still busy with shards when the i-th shard begins to arrive.
        self._still_to_come = self._shard_seconds * np.arange(servers, 0, -1)
        self._processors_free = np.zeros(servers)
        self._links_out_free = np.zeros(servers)
        self._links_in_free = 0.0  # equal for all servers: the shards of a gradient leave the worker at the same time
        self._chief_free = 0.0
        self._pulls = gammas(self.random, costs.pull_seconds(servers), costs.server_cv, servers)
        self._pushes = gammas(self.random, costs.push_seconds(servers), costs.server_cv, servers)
        self._computations = gammas(self.random, costs.compute_seconds, costs.compute_cv)

    def ask_chief(self, then: Callable[[], None]) -> None:
        self._chief_free = max(self._chief_free, self.events.now) + self.costs.chief_seconds
        # One latency is that of the answer to the worker's last push, the other that of its next pull to the servers.
        self.events.at(self._chief_free + 2 * self._latency, then)

    def pull(self, worker: int) -> None:
        self.events.after(self.costs.pull_delay_seconds, self._serve_pull, worker)

    def _serve_pull(self, worker: int) -> None:
        self.read(worker, slice(None))
        served = self._serve(next(self._pulls))
        begins = np.maximum(self._links_out_free, served)
        self._links_out_free = begins + self._shard_seconds
        arrived = self._latency + float(np.max(np.sort(begins) + self._still_to_come))
        seconds = next(self._computations)
        self.events.at(arrived + seconds, self.end_computation, worker, seconds, self._push)

    def _serve(self, seconds: np.ndarray) -> np.ndarray:
        """Return the times, float64 [servers], at which the servers are done with a request that arrives now."""
        self._processors_free = np.maximum(self._processors_free, self.events.now) + seconds
        return self._processors_free

    def _push(self, worker: int) -> None:
        """Send a gradient's shards to all servers over their links, which other workers may be using."""
        reaches = self.events.now + self.costs.push_delay_seconds + self._latency
        self._links_in_free = max(self._links_in_free, reaches) + self._shard_seconds
        self.events.at(max(self._links_in_free, reaches + self._all_seconds), self._serve_push, worker)

    def _serve_push(self, worker: int) -> None:
        taken = float(np.max(self._serve(next(self._pushes))))
        self.take(worker, slice(None))
        self.ended(worker, taken)
        self.events.at(taken, self.go_on, worker)
