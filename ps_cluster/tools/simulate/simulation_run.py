"""Run `simulate`: choose costs and clusters, or a run to check against, and print tables."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ps_cluster.config import RunConfig
from ps_cluster.config.cluster_settings import NONE, Stragglers, parse_stragglers
from ps_cluster.config.modes import MODES
from ps_cluster.config.sections import uses
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.system import machine
from ps_cluster.system.machine import allowance, processor_of
from ps_cluster.tools.simulate import costs as calibration
from ps_cluster.tools.simulate.costs import Costs, Links, SimulatedCluster, costs_of, known_costs, write_costs
from ps_cluster.tools.simulate.prediction import Compared, Prediction, check, predict
from ps_cluster.training.modes.sync_ps import SYNC_PS

ANY_NETWORK = "tutorial_cnn"


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of `ps-cluster simulate`; its options have the same names."""

    workers: tuple[int, ...] = (10, 100, 1000, 10_000)
    parameter_servers: tuple[int, ...] = (1, 4, 16, 64, 256)
    mode: str = "async"
    backup_workers: int = 0
    straggler: str = NONE
    network: str | None = None
    calibrate_from: Path | None = None
    check_run: Path | None = None
    link_gbps: float = 10.0
    latency_us: float = 50.0
    one_machine: bool = False
    cores: int | None = None
    steps_per_dispatch: int | None = None
    seed: int = 0
    json_file: Path | None = None
    save_costs: Path | None = None


def run_simulation(settings: SimulationSettings, console: Console) -> None:
    """Simulate, print, and write the files asked for. Raises UserError for bad input."""
    costs = _costs(settings)
    if settings.save_costs:
        write_costs(settings.save_costs, costs)
    checked = settings.check_run
    found = _check(checked, settings.cores, costs, console) if checked else _predict(settings, costs, console)
    result = {"costs": costs.model_dump(mode="json")} | found
    if settings.json_file:
        write_whole(settings.json_file, json.dumps(result, indent=1))


def _costs(settings: SimulationSettings) -> Costs:
    run = calibration.read_run(settings.calibrate_from) if settings.calibrate_from else None
    name = settings.network or _same_or_any(run)
    costs = costs_of(name)
    if run:
        costs = calibration.calibrate(run, costs)
    if settings.steps_per_dispatch:
        costs = costs.model_copy(update={"steps_per_dispatch": settings.steps_per_dispatch})
    return costs


def _same_or_any(run: calibration.FinishedRun | None) -> str:
    """Return the network of the run if its costs are known."""
    return run.config.model.name if run and run.config.model.name in known_costs() else ANY_NETWORK


def _check(root: Path, cores: int | None, costs: Costs, console: Console) -> dict[str, Any]:
    cores = cores or allowance().threads
    run = calibration.read_run(root)
    compared = check(costs, run, cores)
    print_check(compared, console)
    where = f"run {root} on {cores} cores, {run.processor}\ncosts: {costs.measured_on}, {costs.processor}"
    console.print(where, highlight=False, soft_wrap=True, markup=False)
    measure = _measure(run.config, f"--check {shlex.quote(str(root))}")
    print_foreign(costs, run.processor, measure, console)
    return {"check": str(root), "cores": cores, "quantities": [one.to_json() for one in compared]}


def _predict(settings: SimulationSettings, costs: Costs, console: Console) -> dict[str, Any]:
    clusters = _clusters(settings)
    predictions = []
    with console.status("") as status:
        for cluster in clusters:
            status.update(f"simulates {cluster.workers} workers, {cluster.servers} ps")
            predictions.append(predict(costs, cluster))
    print_predictions(predictions, console)
    print_setting(costs, clusters[0], console)
    print_foreign(costs, processor_of(machine.describe()), _measure(None, "--workers …"), console)
    return {"setting": _plain(settings), "predictions": [asdict(one) for one in predictions]}


def _measure(config: RunConfig | None, goes_on: str) -> tuple[str, str]:
    """Return commands that measure this processor with the work of `config` and then use the costs."""
    work = "--model tutorial_cnn"
    if config is not None:
        training, model = config.training, config.model
        work = f"--model {model.name} --precision {model.precision} --batch-size {training.batch_size_per_worker}"
    return (
        f"{PROGRAM} run --workers 1 --ps 1 {work} --steps 3000 --no-evaluator --run-dir runs/costs",
        f"{PROGRAM} simulate --from runs/costs {goes_on}",
    )


def _plain(settings: SimulationSettings) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}


def _clusters(settings: SimulationSettings) -> list[SimulatedCluster]:
    """Return all clusters asked for, fewest workers first."""
    stragglers = _stragglers(settings)
    _refuse_what_does_not_fit(settings)
    cores = (settings.cores or allowance().threads) if settings.one_machine else None
    network = Links(settings.link_gbps * 1e9 / 8, settings.latency_us / 1e6)
    servers = settings.parameter_servers if MODES[settings.mode].has_parameter_servers else (1,)
    return [
        SimulatedCluster(
            workers=workers,
            servers=parameter_servers,
            network=network,
            mode=settings.mode,
            backup_workers=settings.backup_workers,
            stragglers=stragglers,
            cores=cores,
            pinned=MODES[settings.mode].pins_workers,  # the default of real runs
            seed=settings.seed,
        )
        for workers, parameter_servers in product(settings.workers, servers)
    ]


def _stragglers(settings: SimulationSettings) -> Stragglers:
    try:
        stragglers = parse_stragglers(settings.straggler)
    except ValueError as error:
        raise UserError(f"--straggler: {error}") from error
    named, fewest = [slow.worker for slow in stragglers.slow], min(settings.workers)
    if named and max(named) >= fewest:
        raise UserError(f"--straggler: got {settings.straggler!r}: of {fewest} workers the last one is {fewest - 1}")
    return stragglers


def _refuse_what_does_not_fit(settings: SimulationSettings) -> None:
    mode, backup = MODES[settings.mode], settings.backup_workers
    if backup and (not uses(mode.name, "mode.backup_workers") or backup >= min(settings.workers)):
        raise UserError(f"--backup-workers: got {backup}: it needs --mode {SYNC_PS.name} and more workers than that")
    if settings.cores is not None and not settings.one_machine:
        raise UserError(f"--cores: got {settings.cores}: it needs --one-machine or --check")
    if not mode.has_parameter_servers and settings.parameter_servers != SimulationSettings.parameter_servers:
        raise UserError(f"--ps: got {_list(settings.parameter_servers)}: mode {mode.name} has none: leave it out")
    for name in ("link_gbps", "latency_us"):
        if settings.one_machine and getattr(settings, name) != getattr(SimulationSettings, name):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option}: got {getattr(settings, name):g}: one machine has no network: leave it out")
    if settings.one_machine and not mode.has_parameter_servers:
        raise UserError(f"--mode: got '{mode.name}': with --one-machine it takes one with parameter servers")
    most, allowed = max(settings.parameter_servers), mode.most_parameter_servers
    if settings.one_machine and allowed is not None and most > allowed:
        raise UserError(f"--ps: got {most}: --mode {mode.name} with --one-machine takes {allowed}")


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


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


def print_foreign(costs: Costs, processor: str, measure: Sequence[str], console: Console) -> None:
    """Print a warning and the commands that measure `processor`, if `costs` are of another one."""
    if costs.processor == processor:
        return
    told = f"OTHER PROCESSOR: the costs are of {costs.processor}, and this is {processor}: the figures may be far off."
    console.print(f"{told} Measure it:", style="yellow", highlight=False, soft_wrap=True, markup=False)
    for line in measure:
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)


def print_setting(costs: Costs, cluster: SimulatedCluster, console: Console) -> None:
    """Print what was simulated, and with whose costs. `cluster`: any of the clusters."""
    network = cluster.network
    where = (
        f"{8e-9 * network.link_bytes_per_second:g} Gbit/s links, {1e6 * network.latency_seconds:g} us latency"
        if cluster.cores is None
        else f"one machine with {cluster.cores} cores"
    )
    for line in (
        f"mode {cluster.mode}, {where}, steps a dispatch: {costs.steps_per_dispatch}",
        f"costs: {costs.measured_on}, {costs.processor}",
    ):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def print_check(compared: Sequence[Compared], console: Console) -> None:
    """Print a row for each quantity."""
    table = _table("", "predicted", "measured", "error")
    for one in compared:
        error = "-" if one.error is None else f"{100 * one.error:+.1f} %"
        table.add_row(one.name, f"{one.predicted:,.2f}", f"{one.measured:,.2f}", error)
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
