"""Measure what a long run's ledger costs: memory per process, size and time of a snapshot, time to write the tables.

    python -m benchmarks.long_ledger --data-dir DATA
    python -m benchmarks.long_ledger --steps 10000,1000000,30000000 --ps 1,4 --close-up-to 30000000

Steps compute nothing. Those before the first measured one are generated: see `benchmarks.long_run`. The journal of 30
million steps takes 4.2 GB per parameter server on the disk, its tables twice as much.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from benchmarks.in_turns import Case, Figures, measure, medians, open_data, options, over_rounds, print_table
from benchmarks.runs import CHEAPEST_RULE, MOST_STEPS_PER_S
from ps_cluster.cli.options import OneLineCommand
from ps_cluster.report.terminal import make_console
from ps_cluster.tools.bench.arms import BenchArm
from ps_cluster.tools.bench.throughput import case, run_arm

COLUMNS = (
    over_rounds("steps/s", "steps_per_second", ",.0f"),
    medians(
        "memory [MB]\nchief/ps/worker", [f"peak_pss_bytes.{kind}" for kind in ("chief", "ps", "worker")], ",.0f", 1e-6
    ),
    medians("snapshot\n[MB]", ["snapshot_bytes"], ".2f", 1e-6),
    medians("saved in\n[ms]", ["save_seconds"], ".0f", 1e3),
    medians("closed in\n[s]", ["close_seconds"], ".1f"),
)


@click.command(cls=OneLineCommand)
@options
@click.option("--steps", default="10000,1000000,30000000", help="Steps taken before the measurement, with commas.")
@click.option("--ps", default="1,4", help="Parameter servers, with commas.")
@click.option("--close-up-to", default=1_000_000, help="Write the tables of runs with at most this many steps x ps.")
def main(
    rounds: int, seconds: float, dataset: str, data_dir: Path | None, output: Path | None,
    steps: str, ps: str, close_up_to: int,
) -> None:  # fmt: skip
    """Measure what a ledger of this many steps costs."""
    packed = open_data(dataset, data_dir)

    def figures(taken: int, servers: int) -> Figures:
        more = round(MOST_STEPS_PER_S * (seconds + 10))
        values = {"cluster.parameter_servers": servers, "training.steps": taken + more}
        times = {"checkpoints.snapshot_every_seconds": 2.0}
        config = case("tutorial_cnn", "float32", packed).with_values(CHEAPEST_RULE | values | times)
        end = "close" if taken * servers <= close_up_to else "stop"
        return run_arm(BenchArm("long_run", "benchmarks.long_run", (str(taken), str(seconds), end)), config, packed)

    cases = [
        Case({"steps": f"{taken:,}", "ps": servers}, partial(figures, taken, servers))
        for servers in map(int, ps.split(","))
        for taken in map(int, steps.split(","))
    ]
    rows = measure(cases, rounds, output)
    print_table(f"3 workers, n = {rounds}", rows, COLUMNS, make_console())


if __name__ == "__main__":
    main()
