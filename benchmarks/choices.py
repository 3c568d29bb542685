"""Measure what settings of the cluster are worth: each beside the default, alternating in one call.

    python -m benchmarks.choices --rounds 3 --data-dir DATA

It reports examples per second and CPU time per step, which says more on a machine that others use too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from benchmarks.in_turns import CPU, Case, measure, open_data, options, over_rounds, print_table
from benchmarks.runs import timed
from ps_cluster.cli.options import CommaList, NameOf, OneLineCommand
from ps_cluster.config.networks import NETWORKS
from ps_cluster.report.terminal import make_console
from ps_cluster.tools.bench.throughput import case

CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "1 step a dispatch": {"cluster.steps_per_dispatch": 1},
    "64 steps a dispatch": {"cluster.steps_per_dispatch": 64},
    "2 threads a worker": {"cluster.intra_op_threads": 2},
    "float32 on the wire": {"cluster.wire": "float32"},
    "2 workers": {"cluster.workers": 2},
    "4 workers": {"cluster.workers": 4},
    "2 parameter servers": {"cluster.parameter_servers": 2},
}
COLUMNS = (over_rounds("examples/s", "examples_per_second", ",.0f"), over_rounds("/ default", "to_default", ".2f"), CPU)


@click.command(cls=OneLineCommand)
@options
@click.option("--models", type=CommaList(NameOf(NETWORKS)), default="tutorial_cnn,airbench")
def main(
    rounds: int, seconds: float, dataset: str, data_dir: Path | None, output: Path | None, models: tuple[str, ...]
) -> None:
    """Measure settings of the cluster, each beside the default."""
    packed = open_data(dataset, data_dir)
    cases = [
        Case(
            {"network": model, "setting": name},
            partial(timed, case(model, "auto", packed).with_values(values), packed, seconds),
        )
        for model in models
        for name, values in CHOICES.items()
    ]
    rows = measure(cases, rounds, output)
    print_table(f"3 workers + 1 ps unless said, n = {rounds}", beside_default(rows), COLUMNS, make_console())


def beside_default(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `rows` with each round's rate relative to the network's first row in that round."""
    found = []
    for _, of_network in groupby(rows, key=lambda row: row["network"]):
        default, *others = of_network
        for row in (default, *others):
            pairs = zip(row["rounds"], default["rounds"], strict=True)
            ratios = [
                {**one, "to_default": one["examples_per_second"] / base["examples_per_second"]} for one, base in pairs
            ]
            found.append({**row, "rounds": ratios})
    return found


if __name__ == "__main__":
    main()
