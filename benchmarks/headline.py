"""Measure the figures of README: the default run, the cluster and other ways to train, and one slow worker.

    python -m benchmarks.headline --data-dir DATA --ddp-python ENV/bin/python

This takes an hour on two cores. Each part writes its record when it is done; `--parts` chooses the parts. ENV is a
virtual environment with benchmarks/requirements-ddp.txt; without `--ddp-python` nothing is compared with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.records import RECORDS, Column, keep
from benchmarks.training import train
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import CommaList, Whole
from ps_cluster.config import build_config
from ps_cluster.files.json_files import read_json
from ps_cluster.report.terminal import make_console, print_line
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import machine
from ps_cluster.system.environment import prepare_for_tensorflow
from ps_cluster.tools.bench import cases, throughput
from ps_cluster.tools.bench.throughput import Spread

PARTS = ("default_run", "arms", "straggler")
COLUMNS = {"figure": Column(heading="result"), "values": Column(heading="median (lowest to highest)")}
# Arms → the figure that compares the cluster with the fastest of them in each round. The bare cores compute the same gradients
# and send nothing. `sync_cores` and DDP have a process on each core; DDP is compiled or not.
ARMS = {
    ("limit",): "images/s, cluster ÷ bare cores",
    ("single",): "images/s, cluster ÷ one process",
    ("sync_cores",): "images/s, cluster ÷ all-reduce",
    ("per_variable",): "images/s, cluster ÷ TensorFlow's parameter servers",
    ("ddp_cores", "ddp_compiled"): "images/s, cluster ÷ PyTorch DDP",
}
SLOW = {
    "cluster+straggler_to_cluster": "images/s kept with a slow worker, cluster [%]",
    "sync+straggler_to_sync": "images/s kept with a slow worker, all-reduce [%]",
}
OF_A_RUN: dict[str, tuple[int, Callable[[Summary], float]]] = {  # figure → digits, and its value in a summary
    "test accuracy [%]": (1, lambda summary: 100 * (summary.evaluation.test_accuracy or 0.0)),
    "training time [s]": (0, lambda summary: summary.train_seconds),
    "time to the first update [s]": (1, lambda summary: summary.startup_seconds or 0.0),
    "memory of all processes [GB]": (2, lambda summary: (summary.peak_memory_bytes or 0) / 1e9),
    "mean staleness": (2, lambda summary: summary.staleness.mean or 0.0),
}
# These sections decide what the default run computes. A test fails if they have changed since the record.
MEASURED_SECTIONS = {"mode", "staleness", "training", "optimizer", "lookahead", "schedule"}
Rows = list[dict[str, Any]]  # of a record with COLUMNS


def default_run(seeds: int, data: Mapping[str, object]) -> Rows:
    """Train with the defaults, once for each seed."""
    summaries = []
    for seed in range(seeds):
        print_line(f"default run {seed + 1}/{seeds}")
        with TemporaryDirectory(prefix="headline-") as folder:
            run_dir = RunDir(Path(folder) / "run")
            train(run_dir.root, {"cluster.workers": 3, "cluster.parameter_servers": 1, **data, "training.seed": seed})
            summaries.append(read_json(run_dir.summary, Summary))
    return [
        {"figure": f"default run, {figure}", "values": list(map(of, summaries)), "digits": digits}
        for figure, (digits, of) in OF_A_RUN.items()
    ]


def default_settings() -> dict[str, Any]:
    """Return the settings of the default run: section → setting → value."""
    return build_config(None, {}).model_dump(mode="json", include=MEASURED_SECTIONS)


def compared_with_others(rounds: int, data: Mapping[str, object], ddp_python: Path | None) -> Rows:
    """Compare the cluster with the other ways to train the default network."""
    peers = [names for names in ARMS if ddp_python or "ddp_cores" not in names]
    arms = ["cluster", *chain.from_iterable(peers)]
    figures = bench(arms, "airbench", rounds, {**data, "training.steps": 60}, ddp_python=ddp_python)
    rows = []
    for peer in peers:
        ratios = [figures[f"cluster_to_{name}"].values for name in peer]
        rows.append({"figure": ARMS[peer], "values": list(map(min, zip(*ratios, strict=True))), "digits": 2})
    return rows


def with_straggler(rounds: int, data: Mapping[str, object]) -> Rows:
    """Measure what one slow worker costs the cluster and an all-reduce."""
    steps = {"training.steps": 400}
    figures = bench(["cluster", "sync"], "tutorial_cnn", rounds, {**data, **steps}, straggler="2:5x")
    return [{"figure": SLOW[key], "values": [100 * share for share in figures[key].values]} for key in SLOW]


def bench(
    arms: Sequence[str],
    model: str,
    rounds: int,
    values: Mapping[str, object],
    *,
    straggler: str | None = None,
    ddp_python: Path | None = None,
) -> Mapping[str, Spread]:
    """Run `bench` in the default precision of a run, and return its figures."""
    prepare_for_tensorflow()
    benchmark = cases.benchmark(arms, [model], [machine.fastest_precision()], straggler, ddp_python, values)
    results = throughput.measure(benchmark, rounds, None, notify=print_line)
    throughput.print_table(benchmark, results, make_console())
    return results[0].figures


@click.command(cls=OneLineCommand)
@click.option(
    "--data-dir", type=click.Path(exists=True, path_type=Path, resolve_path=True), help="The folder of CIFAR-10."
)
@click.option("--seeds", type=Whole(1, 20), default=3, help="How many default runs are measured.")
@click.option("--rounds", type=Whole(1, 20), default=5, help="How often each ratio is measured.")
@click.option("--ddp-python", type=click.Path(exists=True, path_type=Path), help="The Python that has PyTorch.")
@click.option(
    "--parts",
    type=CommaList(click.Choice(PARTS)),
    default=",".join(PARTS),
    help="The records to write, separated by commas.",
)
def main(data_dir: Path | None, seeds: int, rounds: int, ddp_python: Path | None, parts: tuple[str, ...]) -> None:
    """Measure the figures of README, and write their records."""
    data = {"data.dataset": "cifar10", **({"data.data_dir": f"{data_dir}"} if data_dir else {})}
    measurements: dict[str, Callable[[], Rows]] = {
        "default_run": lambda: default_run(seeds, data),
        "arms": lambda: compared_with_others(rounds, data, ddp_python),
        "straggler": lambda: with_straggler(rounds, data),
    }
    for name in parts:
        rows = measurements[name]()
        settings = default_settings() if name == "default_run" else None
        keep(RECORDS / f"{name}.json", rows, COLUMNS, settings=settings)
        for row in rows:
            print_line(f"{row['figure']}: {COLUMNS['values'].text(row['values'], row.get('digits'))}")


if __name__ == "__main__":
    main()
