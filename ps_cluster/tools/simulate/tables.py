"""Print predictions as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ps_cluster.config import RunConfig
from ps_cluster.installation import PROGRAM
from ps_cluster.tools.simulate.check import PredictedAndMeasured
from ps_cluster.tools.simulate.costs import Costs, SimulatedCluster
from ps_cluster.tools.simulate.prediction import Prediction


def print_predictions(predictions: Sequence[Prediction], console: Console) -> None:
    """Print a row for each cluster."""
    of_tables = ["tables/ps"] if predictions[0].table_bytes is not None else []
    table = _table("workers", "ps", "examples/s", "efficiency", "staleness", "p95", "busiest", *of_tables)
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


def print_check(compared: Sequence[PredictedAndMeasured], console: Console) -> None:
    """Print a row for each quantity."""
    table = _table("", "predicted", "measured", "error")
    for one in compared:
        error = "-" if one.error is None else f"{100 * one.error:+.1f} %"
        table.add_row(one.name, f"{one.predicted:,.2f}", f"{one.measured:,.2f}", error)
    console.print(table)


def print_setting(costs: Costs, cluster: SimulatedCluster, console: Console) -> None:
    """Print what was simulated, and where its costs were measured. `cluster`: any of the clusters."""
    network, where = cluster.network, f"one machine with {cluster.cores} cores"
    if cluster.cores is None:
        gbits, latency = 8e-9 * network.link_bytes_per_second, 1e6 * network.latency_seconds
        where = f"{gbits:g} Gbit/s links, {latency:g} us latency"
    say(f"mode {cluster.mode}, {where}, steps a dispatch: {costs.steps_per_dispatch}", console)
    if costs.tables:
        of_tables = f"{costs.tables.values_per_step:,.0f} of the {costs.tables.weights:,} weights in tables"
        say(
            f"a step pulls {costs.wire_bytes / 1e6:,.2f} MB, and pushes as much: {of_tables}, and all weights outside "
            "of tables",
            console,
        )
    say(f"costs: {costs.measured_on}, {costs.processor}", console)


def print_foreign(costs: Costs, processor: str, run: RunConfig | None, more: str, console: Console) -> None:
    """If `costs` were measured on another processor, print a warning, and the commands that measure this processor.

    Args:
      run: the configuration of the run that is checked, if there is one. more: further options of `simulate`.
    """
    if costs.processor == processor:
        return
    work = "--model tutorial_cnn"
    if run is not None:
        training, model = run.training, run.model
        work = f"--model {model.name} --precision {model.precision} --batch-size {training.batch_size_per_worker}"
    warning = (
        f"OTHER PROCESSOR: the costs were measured on {costs.processor}, and this is {processor}: the figures may be "
        "far off."
    )
    say(f"{warning} To measure this processor:", console, style="yellow")
    say(f"  {PROGRAM} run --workers 1 --ps 1 {work} --steps 3000 --no-evaluator --run-dir runs/costs", console)
    say(f"  {PROGRAM} simulate --from runs/costs {more}", console)


def say(line: str, console: Console, style: str | None = None) -> None:
    console.print(line, style=style, highlight=False, soft_wrap=True, markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
