"""Predict throughput, staleness and bottleneck of a cluster, or check that against a run, for `simulate`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import MODES, Waits
from ps_cluster.config.schema import NONE, Stragglers, parse_stragglers
from ps_cluster.config.sections import uses
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.launch.topology import keeps_to_cores
from ps_cluster.system import machine
from ps_cluster.system.limits import allowance
from ps_cluster.system.machine import processor_of
from ps_cluster.tools.simulate.costs import (
    Costs,
    FinishedRun,
    Links,
    SimulatedCluster,
    bytes_per_parameter,
    calibrate,
    can_simulate,
    costs_of,
    known_costs,
    read_run,
)
from ps_cluster.tools.simulate.training import OneMachine, SeparateMachines, Slow, Trained, gamma
from ps_cluster.training.modes.sync_ps import SyncPs


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
      costs: of one exchange, in modes with local steps too (`Costs.with_local_steps`).
      cluster: in a mode that is simulated; "sync" has no parameter servers, and a machine for each worker.
    """
    alone = replace(cluster, workers=1, backup_workers=0, stragglers=Stragglers())
    predicted, one = _outcome(costs, cluster), _outcome(costs, alone)
    return replace(predicted, efficiency=predicted.examples_per_second / (cluster.workers * one.examples_per_second))


def simulate(costs: Costs, cluster: SimulatedCluster, steps: int | None = None) -> Trained:
    """Simulate training of `cluster` in a mode with parameter servers."""
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
        worker = rate * costs.worker_cpu_seconds
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
    random = np.random.default_rng(cluster.seed)
    slow = Slow(cluster.stragglers, cluster.workers, random, cluster.seed)

    def one_round() -> float:
        own = gamma(random, costs.compute_seconds, costs.compute_cv, (cluster.workers,))
        return float(np.max(own + slow.seconds(slice(None), own)))

    turns = 2 * (cluster.workers - 1)
    return {
        "worker": float(np.mean([one_round() for _ in range(ROUNDS)])),
        "link": turns * cluster.network.seconds(costs.wire_bytes / cluster.workers),
        "latency": turns * cluster.network.latency_seconds,
        "update": costs.apply_seconds_per_parameter * costs.parameters,
    }


# Compare the simulation with a real run on this machine.


@dataclass(frozen=True)
class PredictedAndMeasured:
    """One quantity, predicted and measured."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """Error relative to the measured value; None where that is 0."""
        return self.predicted / self.measured - 1 if self.measured else None


def check(costs: Costs, run: FinishedRun, cores: int) -> list[PredictedAndMeasured]:
    """Predict `run`, whose processes shared `cores`, and compare.

    Raises:
      UserError: the run's mode or steps differ from those of `costs`, or the run measured nothing.
    """
    config, measured = run.config, run.summary
    costs = costs.with_local_steps(config.batches_per_step)
    _refuse_other_work(costs, run)
    cluster = SimulatedCluster(
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
    predicted = predict(costs, cluster)
    if not measured.examples_per_second:
        raise UserError(f"run directory '{run.root}': examples_per_second: got none: nothing to check against")
    found = [PredictedAndMeasured("examples/s", predicted.examples_per_second, measured.examples_per_second)]
    if config.mode_kind.promise.is_stale and measured.staleness.mean is not None:
        found.append(PredictedAndMeasured("mean staleness", predicted.staleness_mean, measured.staleness.mean))
    return found


def _refuse_other_work(costs: Costs, run: FinishedRun) -> None:
    kind = run.config.mode_kind
    if not can_simulate(kind) or not kind.has_parameter_servers:
        known = " or ".join(mode.name for mode in MODES if can_simulate(mode) and mode.has_parameter_servers)
        raise UserError(f"--check '{run.root}': mode.name: got '{kind.name}': {known} needed")
    if kind.takes_fewer_batches(run.config):
        raise UserError(f"--check '{run.root}': mode.dynamic_steps: got true: it needs false")
    if grace_s := kind.grace_seconds(run.config):
        raise UserError(f"--check '{run.root}': mode.grace_seconds: got {grace_s:g}: it needs 0")
    if kind.delay(run.config):
        workers = kind.emulated_workers(run.config)
        raise UserError(f"--check '{run.root}': mode.simulate_workers: got {workers}: it needs null")
    for name, costed, done in (
        ("parameters", costs.parameters, run.parameters),
        ("examples a step", costs.examples_per_step, run.config.examples_per_step),
        ("bytes of a parameter on the wire", costs.bytes_per_parameter, bytes_per_parameter(run.config)),
        ("cluster.steps_per_dispatch", costs.steps_per_dispatch, run.config.cluster.steps_per_dispatch),
    ):
        if costed != done:
            raise UserError(f"--check '{run.root}': {name}: got {done}, but the costs are of {costed}")


# The command: choose costs and clusters, or a run to check against, and print tables.

ANY_NETWORK = "tutorial_cnn"


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of `ps-cluster simulate`; its options have the same names."""

    workers: tuple[int, ...] = (10, 100, 1000, 10_000)
    parameter_servers: tuple[int, ...] = (1, 4, 16, 64, 256)
    mode: str = "async"
    local_steps: int | None = None
    backup_workers: int = 0
    straggler: str = NONE
    network: str | None = None
    calibrate_from: Path | None = None
    check_run: Path | None = None
    link_gbps: float = 10.0
    latency_us: float = 50.0
    one_machine: bool = False
    cores: int | None = None
    seed: int = 0
    save_costs: Path | None = None


def run_simulation(settings: SimulationSettings, console: Console) -> dict[str, Any]:
    """Simulate, print, and write the costs if asked for. Return all figures. Raises UserError for bad input."""
    costs = _costs(settings)
    if settings.save_costs:
        write_whole(settings.save_costs, dump_yaml(costs.model_dump(mode="json")))
    checked = settings.check_run
    found = _check(checked, settings.cores, costs, console) if checked else _predict(settings, costs, console)
    return {"costs": costs.model_dump(mode="json")} | found


def _costs(settings: SimulationSettings) -> Costs:
    run = read_run(settings.calibrate_from) if settings.calibrate_from else None
    of_run = run.config.model.name if run and run.config.model.name in known_costs() else ANY_NETWORK
    costs = costs_of(settings.network or of_run)
    return calibrate(run, costs) if run else costs


def _check(root: Path, cores: int | None, costs: Costs, console: Console) -> dict[str, Any]:
    cores = cores or allowance().threads
    run = read_run(root)
    compared = check(costs, run, cores)
    print_check(compared, console)
    _say(f"run {root} on {cores} cores, {run.processor}", console)
    _say(f"costs: {costs.measured_on}, {costs.processor}", console)
    print_foreign(costs, run.processor, run.config, f"--check {shlex.quote(str(root))}", console)
    return {
        "check": str(root),
        "cores": cores,
        "quantities": [asdict(one) | {"relative_error": one.error} for one in compared],
    }


def _predict(settings: SimulationSettings, costs: Costs, console: Console) -> dict[str, Any]:
    clusters = _clusters(settings)
    costs = costs.with_local_steps(_local_steps(settings))
    predictions = []
    with console.status("") as status:
        for cluster in clusters:
            status.update(f"simulates {cluster.workers} workers, {cluster.servers} ps")
            predictions.append(predict(costs, cluster))
    print_predictions(predictions, console)
    print_setting(costs, clusters[0], console)
    print_foreign(costs, processor_of(machine.describe()), None, "--workers …", console)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
    return {"setting": plain, "predictions": [asdict(one) for one in predictions]}


def _clusters(settings: SimulationSettings) -> list[SimulatedCluster]:
    """Return all clusters asked for, fewest workers first."""
    stragglers = _stragglers(settings)
    _refuse_what_does_not_fit(settings)
    cores = (settings.cores or allowance().threads) if settings.one_machine else None
    network = Links(settings.link_gbps * 1e9 / 8, settings.latency_us / 1e6)
    servers = _servers(settings)
    return [
        SimulatedCluster(
            workers=workers,
            servers=parameter_servers,
            network=network,
            mode=settings.mode,
            backup_workers=settings.backup_workers,
            stragglers=stragglers,
            cores=cores,
            pinned=MODES[settings.mode].cluster.pins_workers,  # the default of real runs
            seed=settings.seed,
        )
        for workers, parameter_servers in product(settings.workers, servers)
    ]


def _local_steps(settings: SimulationSettings) -> int:
    mode, steps = MODES[settings.mode], settings.local_steps
    if not mode.promise.takes_local_steps:
        if steps is not None:
            taking = ", ".join(mode.name for mode in MODES if mode.promise.takes_local_steps)
            raise UserError(f"--local-steps: got {steps}: it needs one of the modes {taking}")
        return 1
    usual: int = mode.Settings.model_fields["local_steps"].default
    return steps or usual


def _stragglers(settings: SimulationSettings) -> Stragglers:
    try:
        stragglers = parse_stragglers(settings.straggler)
    except ValueError as error:
        raise UserError(f"--straggler: {error}") from error
    named, fewest = [slow.worker for slow in stragglers.slow], min(settings.workers)
    if named and max(named) >= fewest:
        raise UserError(f"--straggler: got {settings.straggler!r}: of {fewest} workers the last one is {fewest - 1}")
    return stragglers


def _servers(settings: SimulationSettings) -> tuple[int, ...]:
    """Return the numbers of parameter servers to predict for: those given, else the usual ones that the mode can have."""
    mode, given = MODES[settings.mode], settings.parameter_servers
    if not mode.has_parameter_servers:
        return (1,)
    if given == SimulationSettings.parameter_servers and mode.cluster.most_parameter_servers is not None:
        return tuple(count for count in given if count <= mode.cluster.most_parameter_servers)
    return given


def _refuse_what_does_not_fit(settings: SimulationSettings) -> None:
    mode, backup = MODES[settings.mode], settings.backup_workers
    if backup and (not uses(mode.name, "mode.backup_workers") or backup >= min(settings.workers)):
        raise UserError(f"--backup-workers: got {backup}: it needs --mode {SyncPs.name} and more workers than that")
    if settings.cores is not None and not settings.one_machine:
        raise UserError(f"--cores: got {settings.cores}: it needs --one-machine or --check")
    if not mode.has_parameter_servers and settings.parameter_servers != SimulationSettings.parameter_servers:
        given = ",".join(map(str, settings.parameter_servers))
        raise UserError(f"--ps: got {given}: mode {mode.name} has none: leave it out")
    for name in ("link_gbps", "latency_us"):
        if settings.one_machine and getattr(settings, name) != getattr(SimulationSettings, name):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option}: got {getattr(settings, name):g}: one machine has no network: leave it out")
    if settings.one_machine and not mode.has_parameter_servers:
        raise UserError(f"--mode: got '{mode.name}': with --one-machine it takes one with parameter servers")
    most, allowed = max(_servers(settings)), mode.cluster.most_parameter_servers
    if allowed is not None and most > allowed:
        raise UserError(f"--ps: got {most}: --mode {mode.name} takes {allowed}")


# Print predictions as tables for a terminal of 80 columns.


def print_predictions(predictions: Sequence[Prediction], console: Console) -> None:
    """Print a row for each cluster."""
    table = _table("workers", "ps", "examples/s", "efficiency", "staleness", "p95", "busiest")
    for one in predictions:
        table.add_row(
            f"{one.workers:,}",
            "-" if one.parameter_servers is None else str(one.parameter_servers),
            f"{one.examples_per_second:,.0f}",
            f"{100 * one.efficiency:.1f} %",
            f"{one.staleness_mean:,.1f}",
            f"{one.staleness_p95:,}",
            f"{one.bottleneck} {100 * one.utilisation[one.bottleneck]:.0f} %",
        )
    console.print(table)


def print_check(compared: Sequence[PredictedAndMeasured], console: Console) -> None:
    """Print a row for each quantity."""
    table = _table("", "predicted", "measured", "error")
    for one in compared:
        error = "-" if one.error is None else f"{100 * one.error:+.1f} %"
        table.add_row(one.name, f"{one.predicted:,.2f}", f"{one.measured:,.2f}", error)
    console.print(table)


def print_setting(costs: Costs, cluster: SimulatedCluster, console: Console) -> None:
    """Print what was simulated, and with whose costs. `cluster`: any of the clusters."""
    network, where = cluster.network, f"one machine with {cluster.cores} cores"
    if cluster.cores is None:
        gbits, latency = 8e-9 * network.link_bytes_per_second, 1e6 * network.latency_seconds
        where = f"{gbits:g} Gbit/s links, {latency:g} us latency"
    _say(f"mode {cluster.mode}, {where}, steps a dispatch: {costs.steps_per_dispatch}", console)
    _say(f"costs: {costs.measured_on}, {costs.processor}", console)


def print_foreign(costs: Costs, processor: str, run: RunConfig | None, goes_on: str, console: Console) -> None:
    """Print a warning if `costs` are of another processor, and the commands that measure this one with the work of `run`."""
    if costs.processor == processor:
        return
    work = "--model tutorial_cnn"
    if run is not None:
        training, model = run.training, run.model
        work = f"--model {model.name} --precision {model.precision} --batch-size {training.batch_size_per_worker}"
    told = f"OTHER PROCESSOR: the costs are of {costs.processor}, and this is {processor}: the figures may be far off."
    _say(f"{told} Measure it:", console, style="yellow")
    _say(f"  {PROGRAM} run --workers 1 --ps 1 {work} --steps 3000 --no-evaluator --run-dir runs/costs", console)
    _say(f"  {PROGRAM} simulate --from runs/costs {goes_on}", console)


def _say(line: str, console: Console, style: str | None = None) -> None:
    console.print(line, style=style, highlight=False, soft_wrap=True, markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
