"""Measure how many steps a second can be dispatched, pulled, pushed and written to the ledger if they compute nothing.

    python -m benchmarks.dispatch --rounds 3 --data-dir DATA

For comparison it measures closures of a plain ClusterCoordinator on the same cluster. Each adds 1 to a variable on the
parameter server and does nothing else.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.in_turns import CPU, Case, measure, medians, open_data, options, over_rounds, print_table
from benchmarks.runs import empty_steps, plain_per_second
from ps_cluster.cli.options import OneLineCommand, Whole
from ps_cluster.config import MOST_WORKERS
from ps_cluster.report.terminal import make_console
from ps_cluster.tools.bench.throughput import case

WEIGHTS = 100
COLUMNS = (
    over_rounds("steps/s", "steps_per_second", ",.0f"),
    medians("pull/push\n[ms]", ["pull_seconds", "push_seconds"], ".2f", 1e3),
    CPU,
)


@click.command(cls=OneLineCommand)
@options
@click.option("--workers", type=Whole(1, MOST_WORKERS), default=3)
def main(rounds: int, seconds: float, dataset: str, data_dir: Path | None, output: Path | None, workers: int) -> None:
    """Measure empty steps a second, and closures a second of a plain ClusterCoordinator."""
    packed = open_data(dataset, data_dir)
    base = case("tutorial_cnn", "float32", packed).with_values({"cluster.workers": workers})
    one_by_one = base.with_values({"cluster.steps_per_dispatch": 1})

    def closures() -> dict[str, float]:
        return {"steps_per_second": plain_per_second("closures", base, packed, seconds, 1)}

    cases = [
        Case({"what": "steps"}, lambda: empty_steps(base, packed, seconds, WEIGHTS)),
        Case({"what": "steps, 1 a dispatch"}, lambda: empty_steps(one_by_one, packed, seconds, WEIGHTS)),
        Case({"what": "plain closures"}, closures),
    ]
    rows = measure(cases, rounds, output)
    print_table(f"{workers} workers, 1 ps, {WEIGHTS} weights, n = {rounds}", rows, COLUMNS, make_console())


if __name__ == "__main__":
    main()
