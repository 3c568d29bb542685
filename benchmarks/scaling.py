"""Measure a cluster on this machine with more workers, parameter servers and parameters.

    python -m benchmarks.scaling --rounds 3 --data-dir DATA
    python -m benchmarks.scaling --rounds 3 --data-dir DATA --parameters 0.1,2,20,100

The first command trains a network. The second takes steps that compute nothing, with so many millions of weights and
the rule sgd: their time is moving and applying them. Evaluator and checkpoints are off, except the last checkpoint.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import click

from benchmarks.in_turns import CPU, Case, Column, measure, medians, open_data, options, over_rounds, print_table
from benchmarks.runs import empty_steps, timed
from ps_cluster.cli.options import CommaList, NameOf, Number, OneLineCommand, Whole
from ps_cluster.config import MOST_PARAMETER_SERVERS, MOST_WORKERS, RunConfig
from ps_cluster.config.networks import NETWORKS
from ps_cluster.data.packed import PackedDataset
from ps_cluster.report.terminal import make_console
from ps_cluster.tools.bench.throughput import case

WORKERS, SERVERS = (1, 2, 3, 4, 6, 8), (1, 2, 4)
STALENESS = [f"staleness.{name}" for name in ("mean", "p95", "max")]
PHASES = ("pulls", "computes", "pushes", "applies", "returns", "dispatch", "idle")
MEMORY = medians("memory\n[GB]", ["peak_memory_bytes"], ".1f", 1e-9)
OF_NETWORKS = (
    over_rounds("examples/s", "examples_per_second", ",.0f"),
    medians("staleness\nmean/p95/max", STALENESS, ".3g"),
    MEMORY,
    CPU,
)
OF_TIME = tuple(medians(f"{phase}\n[%]", [f"shares.{phase}"], ".0f", 100) for phase in PHASES)
OF_PARAMETERS = (
    over_rounds("steps/s", "steps_per_second", ",.4g"),
    medians("pull/push\n[ms]", ["pull_seconds", "push_seconds"], ".3g", 1e3),
    over_rounds("pulled + pushed\n[MB/s]", "bytes_per_second", ",.0f", 1e-6),
)
OF_PROCESSES = (MEMORY, CPU)


@click.command(cls=OneLineCommand)
@options
@click.option(
    "--workers",
    type=CommaList(Whole(1, MOST_WORKERS)),
    help="Default: 1,2,3,4,6,8; with --parameters 3.",
)
@click.option(
    "--ps",
    type=CommaList(Whole(1, MOST_PARAMETER_SERVERS)),
    help="Default: 1,2,4; with --parameters 1.",
)
@click.option("--model", type=NameOf(NETWORKS), default="tutorial_cnn", help="The network, without --parameters.")
@click.option("--parameters", type=CommaList(Number(1e-6, 500)), help="Millions of weights, in place of a network.")
def main(
    rounds: int, seconds: float, dataset: str, data_dir: Path | None, output: Path | None,
    workers: tuple[int, ...] | None, ps: tuple[int, ...] | None, model: str, parameters: tuple[float, ...] | None,
) -> None:  # fmt: skip
    """Measure a cluster over its workers and parameter servers, or over the number of parameters."""
    packed = open_data(dataset, data_dir)
    base = case(model, "auto", packed)
    tables: tuple[tuple[Column, ...], ...]
    if parameters:
        title = f"steps that compute nothing, {base.wire} on the wire, n = {rounds}"
        tables, clusters = (OF_PARAMETERS, OF_PROCESSES), product(workers or (3,), ps or (1,))
    else:
        title = f"{model}, {base.model.precision}, n = {rounds}"
        tables, clusters = (OF_NETWORKS, OF_TIME), product(workers or WORKERS, ps or SERVERS)
    grid = product(parameters or (None,), clusters)
    cases = [one_case(base, packed, seconds, *cluster, millions) for millions, cluster in grid]
    rows = measure(cases, rounds, output)
    for columns in tables:
        print_table(title, rows, columns, make_console())


def one_case(
    base: RunConfig, packed: PackedDataset, seconds: float, workers: int, servers: int, millions: float | None
) -> Case:
    """Return a cluster of this size that trains the network of `base`, or moves so many millions of weights."""
    config = base.with_values({"cluster.workers": workers, "cluster.parameter_servers": servers})
    about = {"workers": workers, "ps": servers}
    if millions is None:
        return Case(about, lambda: timed(config, packed, seconds))
    return Case({"M weights": millions} | about, lambda: empty_steps(config, packed, seconds, round(1e6 * millions)))


if __name__ == "__main__":
    main()
