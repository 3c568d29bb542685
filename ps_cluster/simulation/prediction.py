"""Predict throughput, staleness and bottleneck of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ps_cluster.catalogue.modes import Waits
from ps_cluster.config.stragglers import Stragglers
from ps_cluster.simulation import ring
from ps_cluster.simulation.costs import Costs, SimulatedCluster
from ps_cluster.simulation.machines import SeparateMachines
from ps_cluster.simulation.one_machine import OneMachine
from ps_cluster.simulation.training import Trained


@dataclass(frozen=True)
class Prediction:
    """The result of a simulation. `utilisation`: resource → share of time for which it is busy, 0..1."""

    workers: int
    parameter_servers: int | None  # None where there are none
    examples_per_second: float
    efficiency: float  # against as many workers that are each as fast as one alone
    staleness_mean: float
    staleness_p95: int
    utilisation: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """The busiest resource."""
        return max(self.utilisation, key=self.utilisation.__getitem__)


def predict(costs: Costs, cluster: SimulatedCluster) -> Prediction:
    """Simulate the cluster, and one worker of it alone.

    Args:
      cluster: mode "async", "sync-ps" or "sync"; "sync" has no parameter servers, and a machine for each worker.
    """
    alone = replace(cluster, workers=1, backup_workers=0, stragglers=Stragglers())
    predicted, one = _outcome(costs, cluster), _outcome(costs, alone)
    return replace(predicted, efficiency=predicted.examples_per_second / (cluster.workers * one.examples_per_second))


def simulate(costs: Costs, cluster: SimulatedCluster, steps: int | None = None) -> Trained:
    """Simulate training of `cluster` in mode async or sync-ps."""
    kind = SeparateMachines if cluster.cores is None else OneMachine
    return kind(costs.of_mode(cluster.mode), cluster).run(steps)


@lru_cache  # one worker alone is needed for every number of workers
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
    )


def _utilisation(costs: Costs, cluster: SimulatedCluster, trained: Trained) -> dict[str, float]:
    """Return utilisations by the utilisation law: throughput x seconds per step (Denning and Buzen 1978)."""
    rate, servers = trained.steps_per_second, cluster.servers
    server = rate * (costs.pull_seconds(servers) + costs.push_seconds(servers))
    dispatching = costs.chief_seconds * trained.dispatches / len(trained.seconds)
    chief = rate * dispatching + costs.chief_background_cores
    if cluster.cores is not None:
        worker = rate * (costs.worker_cpu_seconds + costs.round_worker_cpu_seconds)
        return {"cores": (worker + servers * server + chief) / cluster.cores}
    slice_seconds = cluster.network.seconds(costs.wire_bytes / servers)
    computing = trained.computing_seconds / len(trained.seconds)
    return {
        "worker": rate * computing / cluster.workers,
        "ps": server,
        "ps link": rate * slice_seconds,
        "chief": chief,
    }


def _all_reduced(costs: Costs, cluster: SimulatedCluster) -> Prediction:
    phases = ring.phase_seconds(costs, cluster)
    seconds = sum(phases.values())
    return Prediction(
        workers=cluster.workers,
        parameter_servers=None,
        examples_per_second=cluster.workers * costs.examples_per_step / seconds,
        efficiency=1.0,
        staleness_mean=0.0,
        staleness_p95=0,
        utilisation={phase: took / seconds for phase, took in phases.items()},
    )
