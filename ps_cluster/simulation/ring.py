"""Calculate synchronous training by ring all-reduce with a formula: it has no queues to simulate.

Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (Journal of Parallel and
Distributed Computing 69(2)): W workers reduce n bytes in 2 (W - 1) turns, in each of which every worker sends n / W bytes.
"""

from __future__ import annotations

import numpy as np

from ps_cluster.simulation.costs import Costs, SimulatedCluster
from ps_cluster.simulation.draws import Slow, gamma

ROUNDS = 400


def phase_seconds(costs: Costs, cluster: SimulatedCluster) -> dict[str, float]:
    """Return the mean seconds of each phase of an update.

    The phases follow each other: the slowest worker's computation; 2 (W - 1) / W bytes / bandwidth; 2 (W - 1) latency;
    the update of a whole replica.
    """
    turns = 2 * (cluster.workers - 1)
    return {
        "worker": _slowest_seconds(costs, cluster),
        "link": turns * cluster.network.seconds(costs.wire_bytes / cluster.workers),
        "latency": turns * cluster.network.latency_seconds,
        "update": costs.apply_seconds_per_parameter * costs.parameters,
    }


def _slowest_seconds(costs: Costs, cluster: SimulatedCluster) -> float:
    random = np.random.default_rng(cluster.seed)
    slow = Slow(cluster.stragglers, cluster.workers, random, cluster.seed)

    def one_round() -> float:
        own = gamma(random, costs.compute_seconds, costs.compute_cv, (cluster.workers,))
        return float(np.max(own + slow.seconds(slice(None), own)))

    return float(np.mean([one_round() for _ in range(ROUNDS)]))
