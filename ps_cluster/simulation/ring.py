"""Synchronous training by ring all-reduce, by formula: there are no queues in it to simulate.

Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (Journal of Parallel and
Distributed Computing 69(2)): W workers reduce n bytes in 2 (W - 1) turns, in each of which every worker sends n / W bytes.
"""

from __future__ import annotations

import numpy as np

from ps_cluster.simulation.costs import Cluster, Costs, Network
from ps_cluster.simulation.draws import Slow, gamma

ROUNDS = 400


def bytes_sent(costs: Costs, workers: int) -> float:
    """By each worker in an all-reduce of the gradients."""
    return 2 * (workers - 1) / workers * costs.wire_bytes


def all_reduce_seconds(costs: Costs, workers: int, network: Network) -> float:
    """2 (W - 1) / W bytes / bandwidth + 2 (W - 1) latency."""
    return network.seconds(bytes_sent(costs, workers)) + 2 * (workers - 1) * network.latency_seconds


def update_seconds(costs: Costs, cluster: Cluster) -> float:
    """Mean of an update: the slowest worker's computation, the all-reduce, and the update of a whole replica."""
    random = np.random.default_rng(cluster.seed)
    slow = Slow(cluster.stragglers, cluster.workers, random, cluster.seed)

    def slowest() -> float:
        own = gamma(random, costs.compute_seconds, costs.compute_cv, (cluster.workers,))
        return float(np.max(own + slow.seconds(slice(None), own)))

    apply = costs.apply_seconds_per_parameter * costs.parameters
    computing = float(np.mean([slowest() for _ in range(ROUNDS)]))
    return computing + all_reduce_seconds(costs, cluster.workers, cluster.network) + apply
