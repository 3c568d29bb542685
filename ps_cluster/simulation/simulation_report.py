"""Print predictions as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ps_cluster.simulation.check import Compared
from ps_cluster.simulation.costs import Costs, SimulatedCluster
from ps_cluster.simulation.prediction import Prediction


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
