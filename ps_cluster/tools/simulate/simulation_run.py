"""Run `ps-cluster simulate`: predict clusters, or compare a prediction with a finished run, and print a table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from rich.console import Console

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import MODES
from ps_cluster.config.sections import uses
from ps_cluster.config.stragglers import NONE, Stragglers, parse_stragglers
from ps_cluster.errors import UserError
from ps_cluster.files.values import join_names
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.report.terminal import RIGHT, plain_table
from ps_cluster.system import machine
from ps_cluster.system.limits import allowance
from ps_cluster.tools.simulate.calibration import calibrate, read_run
from ps_cluster.tools.simulate.check import check
from ps_cluster.tools.simulate.costs import SHIPPED_COSTS, Costs, Links, SimulatedCluster, can_simulate, read_costs
from ps_cluster.tools.simulate.prediction import Prediction, predict
from ps_cluster.training.modes.local_steps import LocalSettings
from ps_cluster.training.modes.sync_ps import SyncPs


@dataclass(frozen=True)
class SimulationSettings:
    """The values of the options of `ps-cluster simulate`."""

    workers: tuple[int, ...] = (10, 100, 1000, 10_000)
    parameter_servers: tuple[int, ...] = (1, 4, 16, 64, 256)
    mode: str = "async"
    local_steps: int | None = None
    backup_workers: int = 0
    straggler: str = NONE
    costs_file: Path | None = None
    calibrate_from: Path | None = None
    check_run: Path | None = None
    link_gbps: float = 10.0
    latency_us: float = 50.0
    one_machine: bool = False
    cores: int | None = None
    seed: int = 0
    save_costs: Path | None = None


def run_simulation(settings: SimulationSettings, console: Console) -> dict[str, object]:
    """Simulate, print the predictions, and return all figures. Raises UserError for bad input."""
    costs = read_costs(settings.costs_file or SHIPPED_COSTS)
    if settings.calibrate_from:
        costs = calibrate(read_run(settings.calibrate_from), costs)
    if settings.save_costs:
        write_whole(settings.save_costs, dump_yaml(costs.model_dump(mode="json")))
    checked = settings.check_run
    found = _check(checked, settings.cores, costs, console) if checked else _predict(settings, costs, console)
    return {"costs": costs.model_dump(mode="json")} | found


def _check(root: Path, cores: int | None, costs: Costs, console: Console) -> dict[str, object]:
    cores = cores or allowance().threads
    run = read_run(root)
    compared = check(costs, run, cores)
    table = plain_table(**dict.fromkeys(("", "predicted", "measured", "error"), RIGHT))
    for one in compared:
        error = "-" if one.error is None else f"{100 * one.error:+.1f} %"
        table.add_row(one.name, f"{one.predicted:,.2f}", f"{one.measured:,.2f}", error)
    console.print(table)
    _print_line(f"run {root} on {cores} cores, {run.processor}", console)
    _print_line(f"costs: {costs.measured_on}, {costs.processor}", console)
    _warn_of_another_processor(costs, run.processor, run.config, f"--check {shlex.quote(str(root))}", console)
    return {
        "check": str(root),
        "cores": cores,
        "quantities": [asdict(one) | {"relative_error": one.error} for one in compared],
    }


def _predict(settings: SimulationSettings, costs: Costs, console: Console) -> dict[str, object]:
    clusters = _clusters(settings)
    able = [mode.name for mode in MODES if mode.has_tables and can_simulate(mode)]
    if costs.tables and settings.mode not in able:
        raise UserError(
            f"--mode: got '{settings.mode}': the costs include embedding tables, which are simulated only in "
            f"modes {join_names(able)}"
        )
    costs = costs.with_local_steps(_local_steps(settings))
    predictions = []
    with console.status("") as status:
        for cluster in clusters:
            status.update(f"simulating {cluster.workers} workers, {cluster.servers} ps")
            predictions.append(predict(costs, cluster))
    _print_predictions(predictions, console)
    _print_setting(costs, clusters[0], console)
    _warn_of_another_processor(costs, machine.processor_of(machine.describe()), None, "--workers …", console)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
    return {"setting": plain, "predictions": [asdict(one) for one in predictions]}


def _print_predictions(predictions: Sequence[Prediction], console: Console) -> None:
    """Print a table with a row for each cluster, narrower than 80 characters."""
    columns = ("workers", "ps", "examples/s", "efficiency", "staleness", "p95", "busiest")
    of_tables = ("tables/ps",) if predictions[0].table_bytes is not None else ()
    table = plain_table(**dict.fromkeys((*columns, *of_tables), RIGHT))
    for one in predictions:
        table.add_row(
            f"{one.workers:,}",
            "-" if one.parameter_servers is None else str(one.parameter_servers),
            f"{one.examples_per_second:,.0f}",
            f"{100 * one.efficiency:.1f} %",
            f"{one.staleness_mean:,.1f}",
            f"{one.staleness_p95:,}",
            f"{one.bottleneck} {100 * one.utilisation[one.bottleneck]:.0f} %",
            *([] if one.table_bytes is None else [f"{one.table_bytes / 1e9:,.2f} GB"]),
        )
    console.print(table)


def _print_setting(costs: Costs, cluster: SimulatedCluster, console: Console) -> None:
    """Print what was simulated, and in which run and on which processor the costs were measured.

    `cluster`: one of the simulated clusters, which differ only in their numbers of workers and parameter servers.
    """
    network, where = cluster.network, f"one machine with {cluster.cores} cores"
    if cluster.cores is None:
        gbits, latency = 8e-9 * network.link_bytes_per_second, 1e6 * network.latency_seconds
        where = f"{gbits:g} Gbit/s links, {latency:g} us latency"
    _print_line(f"mode {cluster.mode}, {where}, {costs.steps_per_dispatch} steps per dispatch", console)
    if costs.tables:
        of_tables = f"{costs.tables.values_per_step:,.0f} of the {costs.tables.weights:,} weights in tables"
        _print_line(
            f"a step pulls {costs.wire_bytes / 1e6:,.2f} MB, and pushes as much: {of_tables}, and all weights outside "
            "of tables",
            console,
        )
    _print_line(f"costs: {costs.measured_on}, {costs.processor}", console)


def _warn_of_another_processor(
    costs: Costs, processor: str, run: RunConfig | None, more: str, console: Console
) -> None:
    """If `costs` were measured on another processor, print a warning, and the commands that measure this processor.

    Args:
      run: the configuration of the run that is checked, if there is one.
      more: the options that follow --from in the printed command `simulate`.
    """
    if costs.processor == processor:
        return
    work = "--model tutorial_cnn"
    if run is not None:
        training, model = run.training, run.model
        work = f"--model {model.name} --precision {model.precision} --batch-size {training.batch_size_per_worker}"
    warning = f"OTHER PROCESSOR: the costs were measured on {costs.processor}, and this is {processor}"
    _print_line(f"{warning}: the figures may be far off. To measure this processor:", console, style="yellow")
    _print_line(f"  {PROGRAM} run --workers 1 --ps 1 {work} --steps 3000 --no-evaluator --run-dir runs/costs", console)
    _print_line(f"  {PROGRAM} simulate --from runs/costs {more}", console)


def _print_line(line: str, console: Console, style: str | None = None) -> None:
    console.print(line, style=style, highlight=False, soft_wrap=True)


def _clusters(settings: SimulationSettings) -> list[SimulatedCluster]:
    """Return all clusters, in the order of their numbers of workers."""
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
    if not mode.synchrony.takes_local_steps:
        if steps is not None:
            taking = ", ".join(mode.name for mode in MODES if mode.synchrony.takes_local_steps)
            raise UserError(f"--local-steps: got {steps}: only modes {taking} take local steps")
        return 1
    defaults = mode.Settings(name=mode.name)
    assert isinstance(defaults, LocalSettings)
    return steps or defaults.local_steps


def _stragglers(settings: SimulationSettings) -> Stragglers:
    try:
        stragglers = parse_stragglers(settings.straggler)
    except ValueError as error:
        raise UserError(f"--straggler: {error}") from error
    if not stragglers.are_among(fewest := min(settings.workers)):
        raise UserError(
            f"--straggler: got {settings.straggler!r}: with --workers {fewest} the last worker is worker {fewest - 1}"
        )
    return stragglers


def _servers(settings: SimulationSettings) -> tuple[int, ...]:
    """Return the numbers of parameter servers to predict for: the option's numbers, or the mode's defaults."""
    mode, given, usual = MODES[settings.mode], settings.parameter_servers, SimulationSettings.parameter_servers
    most = mode.cluster.most_parameter_servers
    if not mode.has_parameter_servers:
        if given != usual:
            got = ",".join(map(str, given))
            raise UserError(f"--ps: got {got}: mode {mode.name} has no parameter servers: leave it out")
        return (1,)
    if most is None or max(given) <= most:
        return given
    if given != usual:
        raise UserError(f"--ps: got {max(given)}: --mode {mode.name} takes at most {most}")
    return tuple(count for count in given if count <= most)


def _refuse_what_does_not_fit(settings: SimulationSettings) -> None:
    mode, backup, usual = MODES[settings.mode], settings.backup_workers, SimulationSettings
    if backup and (not uses(mode.name, "mode.backup_workers") or backup >= min(settings.workers)):
        raise UserError(f"--backup-workers: got {backup}: it needs --mode {SyncPs.name} and more than {backup} workers")
    if not settings.one_machine:
        if settings.cores is not None:
            raise UserError(f"--cores: got {settings.cores}: it needs --one-machine or --check")
        return
    if not mode.has_parameter_servers:
        raise UserError(f"--mode: got '{mode.name}': --one-machine needs a mode with parameter servers")
    for option, got, default in (
        ("--link-gbps", settings.link_gbps, usual.link_gbps),
        ("--latency-us", settings.latency_us, usual.latency_us),
    ):
        if got != default:
            raise UserError(f"{option}: got {got:g}: one machine has no network: leave it out")
