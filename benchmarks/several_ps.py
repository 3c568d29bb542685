"""Measure what several parameter servers cost: steps that compute nothing, on one and on several, with snapshots.

    python -m benchmarks.several_ps --rounds 3 --data-dir DATA

The longest gaps between dispatches and between updates show what a snapshot (every two seconds) keeps waiting.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from benchmarks.in_turns import Case, measure, medians, open_data, options, over_rounds, print_table
from benchmarks.runs import empty_steps
from ps_cluster.cli.options import CommaList, OneLineCommand, Whole
from ps_cluster.config import MOST_WORKERS
from ps_cluster.report.terminal import make_console
from ps_cluster.tools.bench.throughput import case

COLUMNS = (
    over_rounds("steps/s", "steps_per_second", ",.1f"),
    medians("pull/push\n[ms]", ["pull_seconds", "push_seconds"], ".1f", 1e3),
    medians("push reaches\nslices within [ms]", ["apart_seconds"], ".2f", 1e3),
    medians(
        "longest gap [s]\ndispatches/updates", ["longest_gap_seconds.scheduled", "longest_gap_seconds.applied"], ".2f"
    ),
)


@click.command(cls=OneLineCommand)
@options
@click.option("--workers", type=Whole(1, MOST_WORKERS), default=2)
@click.option("--servers", type=CommaList(Whole(1, 256)), default="1,2,4", help="Numbers of parameter servers.")
@click.option("--weights", type=Whole(1), default=1_000_000)
def main(
    rounds: int,
    seconds: float,
    dataset: str,
    data_dir: Path | None,
    output: Path | None,
    workers: int,
    servers: tuple[int, ...],
    weights: int,
) -> None:
    """Measure empty steps on several parameter servers."""
    packed = open_data(dataset, data_dir)
    base = case("tutorial_cnn", "float32", packed).with_values({"cluster.workers": workers})
    cases = [
        Case({"ps": count}, partial(empty_steps, config, packed, seconds, weights))
        for count in servers
        for config in [base.with_values({"cluster.parameter_servers": count})]
    ]
    rows = measure(cases, rounds, output)
    print_table(f"{workers} workers, {weights:,} weights, n = {rounds}", rows, COLUMNS, make_console())


if __name__ == "__main__":
    main()
