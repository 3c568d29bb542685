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

from benchmarks.in_turns import Case, ShownFigure, measure, open_data, options, timed
from ps_cluster.cli.command_line import CommaList, NameOf, Number, OneLineCommand, Whole
from ps_cluster.config import MOST_PARAMETER_SERVERS, MOST_WORKERS, RunConfig
from ps_cluster.config.networks import NETWORKS
from ps_cluster.data.packed import PackedDataset
from ps_cluster.tools.bench import empty
from ps_cluster.tools.bench.empty import CHEAPEST_RULE
from ps_cluster.tools.bench.throughput import case

WORKERS, SERVERS = (1, 2, 3, 4, 6, 8), (1, 2, 4)
PHASES = ("pulls", "computes", "pushes", "applies", "returns", "dispatch", "idle")
OF_NETWORKS = (
    ShownFigure("examples/s", "examples_per_second"),
    *(ShownFigure(f"{name} staleness", f"staleness.{name}", 2) for name in ("mean", "p95", "max")),
    *(ShownFigure(f"{phase} [%]", f"shares.{phase}", factor=100) for phase in PHASES),
)
OF_PARAMETERS = (
    ShownFigure("steps/s", "steps_per_second", 1),
    ShownFigure("pull [ms]", "pull_seconds", 2, 1e3),
    ShownFigure("push [ms]", "push_seconds", 2, 1e3),
    ShownFigure("pulled and pushed [MB/s]", "bytes_per_second", factor=1e-6),
)
OF_PROCESSES = (
    ShownFigure("memory [GB]", "peak_memory_bytes", 1, 1e-9),
    *(
        ShownFigure(f"{kind} CPU [ms a step]", f"cpu_seconds_per_step.{kind}", 2, 1e3)
        for kind in ("chief", "ps", "worker")
    ),
)


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
    clusters = product(workers or (3,), ps or (1,)) if parameters else product(workers or WORKERS, ps or SERVERS)
    grid = product(parameters or (None,), clusters)
    cases = [one_case(base, packed, seconds, *cluster, millions) for millions, cluster in grid]
    measure(cases, rounds, (*(OF_PARAMETERS if parameters else OF_NETWORKS), *OF_PROCESSES), output)


def one_case(
    base: RunConfig, packed: PackedDataset, seconds: float, workers: int, servers: int, millions: float | None
) -> Case:
    """Return a cluster of this size that trains the network of `base`, or moves so many millions of weights."""
    config = base.with_values({"cluster.workers": workers, "cluster.parameter_servers": servers})
    about = {"workers": workers, "ps": servers}
    if millions is None:
        return Case(about, lambda: timed(config, packed, seconds))
    moved, body = config.with_values(CHEAPEST_RULE), (empty.__name__, str(round(1e6 * millions)))
    return Case({"M weights": millions} | about, lambda: timed(moved, packed, seconds, *body))


if __name__ == "__main__":
    main()
