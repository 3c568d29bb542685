"""Predict the throughput, staleness and bottleneck of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ps_cluster.config.modes import Waits
from ps_cluster.config.stragglers import Stragglers
from ps_cluster.tools.simulate.costs import Costs, SimulatedCluster
from ps_cluster.tools.simulate.drawing import Slow, gamma
from ps_cluster.tools.simulate.one_machine import OneMachine
from ps_cluster.tools.simulate.separate_machines import SeparateMachines
from ps_cluster.tools.simulate.training import Trained

ROUNDS = 400  # simulated to find the mean time of the slowest worker, for which an all-reduce waits


@dataclass(frozen=True)
class Prediction:
    """The predicted throughput, staleness and utilisation of a cluster."""

    workers: int
    parameter_servers: int | None  # None in a mode without parameter servers
    examples_per_second: float
    efficiency: float  # the share of the ideal rate, which is the number of workers times the rate of a worker alone
    staleness_mean: float
    staleness_p95: int
    utilisation: dict[str, float]  # the share of time, 0..1, for which each resource is busy
    table_bytes: int | None = None  # of the rows of tables and their slots on one parameter server; None without tables

    @property
    def bottleneck(self) -> str:
        """The name of the busiest resource."""
        return max(self.utilisation, key=self.utilisation.__getitem__)


def predict(costs: Costs, cluster: SimulatedCluster) -> Prediction:
    """Simulate the cluster and, to compute its efficiency, one worker alone.

    `costs`: the costs of a step. In a mode with local steps, they are the costs of a period: of all steps from one push
    to the next (`Costs.with_local_steps`).
    """
    alone = replace(cluster, workers=1, backup_workers=0, stragglers=Stragglers())
    predicted, one = _outcome(costs, cluster), _outcome(costs, alone)
    return replace(predicted, efficiency=predicted.examples_per_second / (cluster.workers * one.examples_per_second))


def simulate(costs: Costs, cluster: SimulatedCluster, steps: int | None = None) -> Trained:
    """Simulate training of `cluster` in a mode with parameter servers."""
    kind = SeparateMachines if cluster.cores is None else OneMachine
    return kind(costs.of_mode(cluster.mode), cluster).run(steps)


@lru_cache  # The same single worker is simulated for every number of workers.
def _outcome(costs: Costs, cluster: SimulatedCluster) -> Prediction:
    return _all_reduced(costs, cluster) if cluster.waits is Waits.FOR_ALL_REDUCE else _trained(costs, cluster)


def _trained(costs: Costs, cluster: SimulatedCluster) -> Prediction:
    trained = simulate(costs, cluster)
    stale = trained.warm_staleness
    return Prediction(
        workers=cluster.workers,
        parameter_servers=cluster.servers,
        examples_per_second=trained.gradients_per_second * costs.examples_per_step,
        efficiency=1.0,
        staleness_mean=float(stale.mean()),
        staleness_p95=int(np.percentile(stale, 95, method="lower")),
        utilisation=_utilisation(costs.of_mode(cluster.mode), cluster, trained),
        table_bytes=costs.tables.server_bytes(cluster.mode, cluster.servers) if costs.tables else None,
    )


def _utilisation(costs: Costs, cluster: SimulatedCluster, trained: Trained) -> dict[str, float]:
    """Return the utilisation of each resource: throughput x seconds per step (Denning and Buzen 1978)."""
    rate, servers = trained.steps_per_second, cluster.servers
    server = rate * (costs.pull_seconds(servers) + costs.push_seconds(servers))
    dispatching = costs.chief_seconds * trained.dispatches / len(trained.seconds)
    chief = rate * dispatching + costs.chief_background_cores
    if cluster.cores is not None:
        worker = rate * costs.worker_cpu_seconds
        return {"cores": (worker + servers * server + chief) / cluster.cores}
    shard_seconds = cluster.network.seconds(costs.wire_bytes / servers)
    computing = trained.computing_seconds / len(trained.seconds)
    return {
        "worker": rate * computing / cluster.workers,
        "ps": server,
        "ps link": rate * shard_seconds,
        "chief": chief,
    }


def _all_reduced(costs: Costs, cluster: SimulatedCluster) -> Prediction:
    """Predict training with ring all-reduce, which has no queues to simulate.

    The phases of a step follow each other: the slowest worker's computation, the sending of the gradient over the
    links, the latency of the links, and the update of a whole replica. W workers reduce n bytes in 2 (W - 1) turns. In
    each turn, every worker sends n / W bytes (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", Journal of Parallel and Distributed Computing 69(2)).
    """
    random, workers = np.random.default_rng(cluster.seed), cluster.workers
    slow = Slow(cluster.stragglers, workers, random, cluster.seed)
    slowest = []
    for _ in range(ROUNDS):
        own = gamma(random, costs.compute_seconds, costs.compute_cv, (workers,))
        slowest.append(float(np.max(own + slow.seconds(slice(None), own))))
    turns = 2 * (workers - 1)
    phases = {
        "worker": float(np.mean(slowest)),
        "link": turns * cluster.network.seconds(costs.wire_bytes / workers),
        "latency": turns * cluster.network.latency_seconds,
        "update": costs.apply_seconds_per_parameter * costs.parameters,
    }
    seconds = sum(phases.values())
    return Prediction(
        workers=workers,
        parameter_servers=None,
        examples_per_second=workers * costs.examples_per_step / seconds,
        efficiency=1.0,
        staleness_mean=0.0,
        staleness_p95=0,
        utilisation={phase: took / seconds for phase, took in phases.items()},
    )
