"""Measure the numbers in README: the results of its recipes, other ways to train, and the cost of one slow worker.

    python -m benchmarks.headline --data-dir DATA --ddp-python ENV/bin/python

This takes three hours on two cores. Each part writes its record when it is done; `--parts` chooses the parts. ENV is a
virtual environment with benchmarks/requirements-ddp.txt; without `--ddp-python` nothing is compared with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.records import RECORDS, Column, keep
from benchmarks.training import train
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import CommaList, Integer
from ps_cluster.config import build_config
from ps_cluster.files.json_files import read_json
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import make_console, print_line
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import machine
from ps_cluster.system.environment import prepare_for_tensorflow
from ps_cluster.tools.bench import cases, throughput
from ps_cluster.tools.bench.throughput import Result

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
SLOW = {  # arm → the figure of the share of its rate that it keeps with a slow worker
    "cluster": "images/s kept with a slow worker, cluster [%]",
    "sync": "images/s kept with a slow worker, all-reduce [%]",
}
OF_A_RUN: dict[str, tuple[int, Callable[[Summary], float | None]]] = {  # figure → digits, and its value in a summary
    "test accuracy [%]": (2, lambda summary: _percent(summary.evaluation.test_accuracy)),
    "accuracy over six views [%]": (2, lambda summary: _percent(summary.evaluation.augmented_test_accuracy)),
    "training time [s]": (0, lambda summary: summary.train_seconds),
    "time to the first update [s]": (1, lambda summary: summary.startup_seconds),
    "memory of all processes [GB]": (2, lambda summary: (summary.peak_memory_bytes or 0) / 1e9),
    "mean staleness": (2, lambda summary: summary.staleness.mean),
}
# These sections decide what a training computes. A test fails if they have changed since the record.
MEASURED_SECTIONS = {"mode", "staleness", "training", "optimizer", "lookahead", "schedule"}
Rows = list[dict[str, Any]]  # of a record with COLUMNS


@dataclass(frozen=True)
class Repeated:
    """A training that is measured with several seeds.

    Attributes:
      title: the beginning of the name of each of its figures in the record.
      config: the file with its settings; None for the defaults.
      overrides: further settings by their dotted keys, which win over the file.
    """

    title: str
    config: Path | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide what the training computes: section → setting → value."""
        return build_config(self.config, dict(self.overrides)).model_dump(mode="json", include=MEASURED_SECTIONS)

    def measure(self, seeds: int, data: Mapping[str, object]) -> Rows:
        """Train once for each seed, and return a row for each figure. Figures that no summary has are left out."""
        summaries = []
        for seed in range(seeds):
            print_line(f"{self.title} {seed + 1}/{seeds}")
            with TemporaryDirectory(prefix="headline-") as folder:
                run_dir = RunDir(Path(folder) / "run")
                train(run_dir.root, {**self.overrides, **data, "training.seed": seed}, config=self.config)
                summaries.append(read_json(run_dir.summary, Summary))
        rows = []
        for figure, (digits, of) in OF_A_RUN.items():
            values = [value for value in map(of, summaries) if value is not None]
            if values:
                rows.append({"figure": f"{self.title}, {figure}", "values": values, "digits": digits})
        return rows


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


CIFAR10_94 = IMPORT_FOLDER / "configs" / "cifar10-94.yaml"
ONE_PROCESS = {"mode.name": "single"}
REPEATED = {  # the name of the record → the training
    "default_run": Repeated("default run"),
    "default_single": Repeated("default run in one process", overrides=ONE_PROCESS),
    "cifar10_94": Repeated("cifar10-94.yaml", CIFAR10_94),
    "cifar10_94_single": Repeated("cifar10-94.yaml in one process", CIFAR10_94, ONE_PROCESS),
}
PARTS = (*REPEATED, "arms", "straggler")


def compared_with_others(rounds: int, data: Mapping[str, object], ddp_python: Path | None) -> Rows:
    """Compare the cluster with the other ways to train the default network."""
    peers = [names for names in ARMS if ddp_python or "ddp_cores" not in names]
    arms = ["cluster", *chain.from_iterable(peers)]
    rates = bench(arms, "airbench", rounds, {**data, "training.steps": 60}, ddp_python=ddp_python).rates
    rows = []
    for peer in peers:
        ratios = [throughput.ratios(rates, "cluster", name) for name in peer]
        rows.append({"figure": ARMS[peer], "values": list(map(min, zip(*ratios, strict=True))), "digits": 2})
    return rows


def with_straggler(rounds: int, data: Mapping[str, object]) -> Rows:
    """Measure what one slow worker costs the cluster and an all-reduce."""
    steps = {"training.steps": 400}
    result = bench(list(SLOW), "tutorial_cnn", rounds, {**data, **steps}, straggler="2:5x")
    shares = ((arm, throughput.kept(result.rates, arm)) for arm in result.arms)
    return [
        {"figure": SLOW[arm.same_without_stragglers], "values": [100 * share for share in kept]}
        for arm, kept in shares
        if arm.same_without_stragglers and kept
    ]


def bench(
    arms: Sequence[str],
    model: str,
    rounds: int,
    values: Mapping[str, object],
    *,
    straggler: str | None = None,
    ddp_python: Path | None = None,
) -> Result:
    """Run the command `bench` for one network, in the default precision of a run, and return the result."""
    prepare_for_tensorflow()
    benchmark = cases.benchmark(arms, [model], [machine.fastest_precision()], straggler, ddp_python, values)
    (result,) = throughput.report(benchmark, rounds, None, make_console(), notify=print_line)
    return result


@click.command(cls=OneLineCommand)
@click.option(
    "--data-dir", type=click.Path(exists=True, path_type=Path, resolve_path=True), help="The folder of CIFAR-10."
)
@click.option("--seeds", type=Integer(1, 20), default=3, help="How often each training is repeated.")
@click.option("--rounds", type=Integer(1, 20), default=5, help="How often each ratio is measured.")
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
        "arms": lambda: compared_with_others(rounds, data, ddp_python),
        "straggler": lambda: with_straggler(rounds, data),
    }
    for name in parts:
        repeated = REPEATED.get(name)
        rows = repeated.measure(seeds, data) if repeated else measurements[name]()
        keep(RECORDS / f"{name}.json", rows, COLUMNS, settings=repeated.settings() if repeated else None)
        for row in rows:
            print_line(f"{row['figure']}: {COLUMNS['values'].text(row['values'], row.get('digits'))}")


if __name__ == "__main__":
    main()
