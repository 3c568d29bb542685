"""Predict throughput, staleness and bottleneck of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ps_cluster.config.cluster_settings import Stragglers, parse_stragglers
from ps_cluster.config.modes import MODES, Waits
from ps_cluster.errors import UserError
from ps_cluster.launch.local_cluster import keeps_to_cores, own_cores
from ps_cluster.tools.simulate.costs import WIRE_BYTES, Costs, FinishedRun, Links, SimulatedCluster
from ps_cluster.tools.simulate.events import Cores, Process, Slow, gamma, gammas
from ps_cluster.tools.simulate.training import SeparateMachines, SimulatedTraining, Trained


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
    phases = phase_seconds(costs, cluster)
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


# Simulate all processes on one machine with shared cores, to check the simulation against a run on one machine.

CHIEF_LOOKS_EVERY_S = 0.25  # POLL_S in ps_cluster/training/chief.py

Serve = Callable[[int, int], None]
"""(worker, server) → its request is served there."""


class OneMachine(SimulatedTraining):
    """One machine without a network. All CPU time is taken from `cluster.cores`.

    If a worker's CPU time exceeds the wall seconds of its computation, the excess was spent in what the costs call
    delays (calls, packing). Whatever exceeds these too was a second thread of the computation.
    """

    def __init__(self, costs: Costs, cluster: SimulatedCluster):
        more = max(0.0, costs.worker_cpu_seconds - costs.compute_seconds)
        work_in_delays = min(1.0, more / costs.delay_seconds) if costs.delay_seconds else 0.0
        super().__init__(costs.with_delays_times(1 - work_in_delays), cluster)
        self._pull_work = work_in_delays * (costs.step_gap_seconds + costs.pull_delay_seconds)
        in_push = work_in_delays * costs.push_delay_seconds
        computing = costs.worker_cpu_seconds - self._pull_work - in_push
        self._push_work = in_push + costs.round_worker_cpu_seconds
        self._threads = max(1.0, computing / costs.compute_seconds)
        self._computations = gammas(self.random, computing / self._threads, costs.compute_cv)
        self._idle = max(0.0, costs.compute_seconds - computing)

        own = [_cores_of(worker, cluster) for worker in range(cluster.workers)]
        # Cores that no worker is pinned to are left out: workers that wait for a server leave it enough cores.
        parts = {part: Cores(self.events, len(part)) for part in dict.fromkeys(own)}
        self._of_worker = [parts[part] for part in own]
        self._all = list(parts.values())
        self._chief, self._chief_looking = Process(self._all), Process(self._all)
        self._servers = [Process(self._all) for _ in range(cluster.servers)]
        self._pulls = gammas(self.random, costs.pull_seconds(cluster.servers), costs.server_cv)
        self._pushes = gammas(self.random, costs.push_seconds(cluster.servers), costs.server_cv)
        self._unserved = [0] * cluster.workers
        self._look_on()

    def _look_on(self) -> None:
        """Run the chief's background thread, which looks at the cluster and writes progress."""
        if self.costs.chief_background_cores:
            self._chief_looking.do(CHIEF_LOOKS_EVERY_S * self.costs.chief_background_cores, lambda: None)
            self.events.after(CHIEF_LOOKS_EVERY_S, self._look_on)

    def ask_chief(self, then: Callable[[], None]) -> None:
        self._chief.do(self.costs.chief_seconds, then)

    def pull(self, worker: int) -> None:
        self._of_worker[worker].run(self._pull_work, partial(self._pull, worker))

    def _pull(self, worker: int) -> None:
        delay = self.costs.pull_delay_seconds
        self.events.after(delay, self._request, worker, self._pulls, self.read, self._compute)

    def _request(self, worker: int, seconds: Iterator[float], serve: Serve, then: Callable[[int], None]) -> None:
        """Call `serve(worker, server)` when each server has done its part, and `then(worker)` when all have."""
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
        self.events.after(self._idle, self.compute_and_wait, worker, seconds, self._push)

    def _push(self, worker: int) -> None:
        self._of_worker[worker].run(self._push_work, partial(self._send, worker))

    def _send(self, worker: int) -> None:
        delay = self.costs.push_delay_seconds
        self.events.after(delay, self._request, worker, self._pushes, self.take, self._taken_by_all)

    def _taken_by_all(self, worker: int) -> None:
        self.ended(worker, self.events.now)
        self.go_on(worker)


def _cores_of(worker: int, cluster: SimulatedCluster) -> tuple[int, ...]:
    if cluster.cores is None:
        raise ValueError("the cluster is not on one machine")
    cores = range(cluster.cores)
    return tuple(own_cores(worker, cluster.workers, cores) if cluster.pinned else cores)


# Calculate synchronous training by ring all-reduce with a formula: it has no queues to simulate.
#
# Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (Journal of Parallel and
# Distributed Computing 69(2)): W workers reduce n bytes in 2 (W - 1) turns, in each of which every worker sends n / W bytes.

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


# Compare the simulation with a real run on this machine.


@dataclass(frozen=True)
class Compared:
    """One quantity, predicted and measured."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """Error relative to the measured value; None where that is 0."""
        return self.predicted / self.measured - 1 if self.measured else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"relative_error": self.error}


def check(costs: Costs, run: FinishedRun, cores: int) -> list[Compared]:
    """Predict `run`, whose processes shared `cores`, and compare.

    Raises:
      UserError: the run's mode or steps differ from those of `costs`, or the run measured nothing.
    """
    _refuse_other_work(costs, run)
    config = run.config
    predicted = predict(costs, _cluster_of(run, cores))
    measured = run.summary
    if not measured.examples_per_second:
        raise UserError(f"run directory '{run.root}': examples_per_second: got none: nothing to check against")
    found = [Compared("examples/s", predicted.examples_per_second, measured.examples_per_second)]
    if config.mode_kind.is_stale and measured.staleness.mean is not None:
        found.append(Compared("mean staleness", predicted.staleness_mean, measured.staleness.mean))
    return found


def _cluster_of(run: FinishedRun, cores: int) -> SimulatedCluster:
    config = run.config
    return SimulatedCluster(
        workers=config.training_workers,
        servers=config.cluster.parameter_servers,
        network=Links(float("inf"), 0.0),
        mode=config.mode.name,
        backup_workers=config.mode_kind.late_workers(config),
        stragglers=parse_stragglers(config.cluster.straggler),
        cores=cores,
        pinned=keeps_to_cores(config),
        seed=config.training.seed,
    )


def _refuse_other_work(costs: Costs, run: FinishedRun) -> None:
    kind = run.config.mode_kind
    if not kind.is_simulated or not kind.has_parameter_servers:
        known = " or ".join(mode.name for mode in MODES if mode.is_simulated and mode.has_parameter_servers)
        raise UserError(f"--check '{run.root}': mode.name: got '{kind.name}': {known} needed")
    if kind.delay(run.config):
        workers = kind.emulated_workers(run.config)
        raise UserError(f"--check '{run.root}': mode.simulate_workers: got {workers}: it needs null")
    for name, costed, done in (
        ("parameters", costs.parameters, run.parameters),
        ("examples a step", costs.examples_per_step, run.config.examples_per_step),
        ("bytes of a parameter on the wire", costs.bytes_per_parameter, WIRE_BYTES[run.config.wire]),
        ("cluster.steps_per_dispatch", costs.steps_per_dispatch, run.config.cluster.steps_per_dispatch),
    ):
        if costed != done:
            raise UserError(f"--check '{run.root}': {name}: got {done}, but the costs are of {costed}")
