"""Measure what waiting costs: examples/s and CPU time of the modes in which workers wait, beside all-reduce.

    python -m benchmarks.waiting --rounds 3 --models tutorial_cnn,cifar_tf_cnn --data-dir DATA
    python -m benchmarks.waiting --rounds 3 --data-dir DATA --before OTHER_CHECKOUT
    python -m benchmarks.waiting --rounds 3 --data-dir DATA --ways "async,async pinned,sync,sync pinned"

With --before the same runs also use the code of another checkout, in turns, where it has their settings. Its format of
packed data sets has to be the same.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.in_turns import CPU, Case, measure, medians, open_data, options, over_rounds, print_table
from benchmarks.runs import timed
from ps_cluster.cli.options import CommaList, NameOf, OneLineCommand
from ps_cluster.config.networks import NETWORKS
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import make_console
from ps_cluster.tools.bench.throughput import case

SLOW = {"cluster.straggler": "2:5x"}
WAYS: dict[str, dict[str, Any]] = {
    "async": {"mode.name": "async", "cluster.pin_workers": False},  # no worker waits; unpinned, like the others
    "sync": {"mode.name": "sync"},
    "sync-ps": {"mode.name": "sync-ps"},
    "sync-ps 2:5x": {"mode.name": "sync-ps"} | SLOW,
    "bounded s=2": {"mode.name": "bounded", "mode.max_staleness": 2},
    "bounded s=2 2:5x": {"mode.name": "bounded", "mode.max_staleness": 2} | SLOW,
    "bounded lag=0": {"mode.name": "bounded", "mode.max_clock_lag": 0},
    "bounded lag=2 2:5x": {"mode.name": "bounded", "mode.max_clock_lag": 2} | SLOW,
}
PINNED = {  # each worker keeps to its own cores
    f"{way} pinned": WAYS[way] | {"cluster.pin_workers": True} for way in ("async", "bounded s=2", "sync-ps", "sync")
}
WAYS |= PINNED
NOT_BEFORE = ("async", "sync", "bounded lag=0", "bounded lag=2 2:5x", *PINNED)  # equal there, or missing there
COLUMNS = (
    over_rounds("examples/s", "examples_per_second", ",.0f"),
    medians("waits/pulls/pushes\n[% of a worker]", ["shares.waits", "shares.pulls", "shares.pushes"], ".1f", 100),
    CPU,
)


@click.command(cls=OneLineCommand)
@options
@click.option("--models", type=CommaList(NameOf(NETWORKS)), default="tutorial_cnn", help="Networks.")
@click.option("--precision", type=click.Choice(["bfloat16", "float32"]), default="bfloat16")
@click.option("--ways", type=CommaList(click.Choice(list(WAYS))), default=",".join(["sync", "sync-ps", "bounded s=2"]))
@click.option("--before", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
def main(
    rounds: int,
    seconds: float,
    dataset: str,
    data_dir: Path | None,
    output: Path | None,
    models: tuple[str, ...],
    precision: str,
    ways: tuple[str, ...],
    before: Path | None,
) -> None:
    """Measure what waiting costs. A step is the gradient of one worker, so a round has as many steps as workers."""
    packed = open_data(dataset, data_dir)
    cases = []
    for model in models:
        for way in ways:
            config = case(model, precision, packed).with_values(WAYS[way])
            for code, project in (("before", before), ("now", IMPORT_FOLDER)):
                if project and (code == "now" or way not in NOT_BEFORE):
                    about = {"network": model, "way": way, "code": code}
                    cases.append(Case(about, partial(timed, config, packed, seconds, project=project)))
    rows = measure(cases, rounds, output)
    print_table(f"3 workers, 1 ps where there is one, {precision}, n = {rounds}", rows, COLUMNS, make_console())


if __name__ == "__main__":
    main()
