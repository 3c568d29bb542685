"""Measure the figures of README: the default run, the cluster beside other ways to train, and one slow worker.

    python -m benchmarks.headline --data-dir DATA --ddp-python ENV/bin/python

Takes an hour on two cores. Each part writes its record when it is done; `--parts` measures only some. ENV: an environment
with benchmarks/requirements-ddp.txt; without it there is no figure beside PyTorch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.records import RECORDS, Column, keep
from ps_cluster.cli.command_line import CommaList, OneLineCommand, Whole
from ps_cluster.errors import RunFailed
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import print_line
from ps_cluster.system import machine

PRECISION = ("--precisions", machine.fastest_precision())  # the one that a run takes by default
FIGURES = {"figure": Column(heading="result"), "values": Column(heading="median (lowest to highest)")}
ARMS = {  # arms → what the cluster is held against: in each round the quickest of them
    ("limit",): "images/s, cluster ÷ bare cores, which compute the same gradients and send nothing",
    ("single",): "images/s, cluster ÷ one process with all cores",
    ("sync_cores",): "images/s, cluster ÷ all-reduce, a worker on each core",
    ("ddp_cores", "ddp_compiled"): "images/s, cluster ÷ PyTorch DDP, a process on each core, compiled or not",
}
SLOW = {
    "cluster+straggler_to_cluster": "small network, one worker 5x slower: images/s that the cluster keeps [%]",
    "sync+straggler_to_sync": "small network, one worker 5x slower: images/s that all-reduce keeps [%]",
}


def command(*words: object) -> None:
    """Run a command of this program; its output is shown. Raises RunFailed if it fails."""
    argv = [sys.executable, "cli.py", *map(str, words)]
    if code := subprocess.run(argv, cwd=IMPORT_FOLDER).returncode:
        raise RunFailed(f"exit code {code}: {' '.join(argv)}")


def default_run(data: tuple[str, ...], folder: Path, seeds: int, rounds: int, ddp: Path | None) -> list[dict[str, Any]]:
    """Train with the defaults, once for each seed."""
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        run_dir = folder / f"seed-{seed}"
        command("run", "--workers", 3, "--ps", 1, *data, "--seed", seed, "--run-dir", run_dir)
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        for name, value in {
            "test accuracy [%]": 100 * summary["evaluation"]["test_accuracy"],
            "training time [s]": summary["train_seconds"],
            "time to the first update [s]": summary["startup_seconds"],
            "memory of all processes [GB]": summary["peak_memory_bytes"] / 1e9,
            "mean staleness": summary["staleness"]["mean"],
        }.items():
            found.setdefault(name, []).append(value)
    digits = {"training time [s]": 0, "memory of all processes [GB]": 2, "mean staleness": 2}
    return [
        {
            "figure": f"default run, {machine.fastest_precision()}: {name}",
            "values": values,
            "digits": digits.get(name, 1),
        }
        for name, values in found.items()
    ]


def bench(folder: Path, rounds: int, *words: object) -> dict[str, Any]:
    """Return the row of `bench` for one network in one precision."""
    output = folder / "bench.json"
    command("bench", "--rounds", rounds, *words, "--output", output)
    (row,) = json.loads(output.read_text(encoding="utf-8"))["rows"]
    return dict(row)


def arms(data: tuple[str, ...], folder: Path, seeds: int, rounds: int, ddp: Path | None) -> list[dict[str, Any]]:
    """Measure the cluster beside the other ways to train the default network."""
    peers = [names for names in ARMS if ddp or "ddp_cores" not in names]
    names, more = ",".join(["cluster", *chain.from_iterable(peers)]), ("--ddp-python", ddp) if ddp else ()
    few = ("--set", "training.steps=60")
    row = bench(folder, rounds, "--arms", names, "--models", "airbench", *few, *PRECISION, *more, *data)
    found = []
    for peer in peers:
        ratios = [row[f"cluster_to_{name}"]["values"] for name in peer]
        found.append({"figure": ARMS[peer], "values": [min(of_round) for of_round in zip(*ratios)], "digits": 2})
    return found


def straggler(data: tuple[str, ...], folder: Path, seeds: int, rounds: int, ddp: Path | None) -> list[dict[str, Any]]:
    """Measure what one slow worker costs the cluster and an all-reduce."""
    small = ("--models", "tutorial_cnn", *PRECISION, "--set", "training.steps=400")
    row = bench(folder, rounds, "--arms", "cluster,sync", "--straggler", "2:5x", *small, *data)
    return [{"figure": SLOW[key], "values": [100 * share for share in row[key]["values"]]} for key in SLOW]


PARTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "default_run": default_run,
    "arms": arms,
    "straggler": straggler,
}


@click.command(cls=OneLineCommand)
@click.option("--data-dir", type=click.Path(exists=True, path_type=Path, resolve_path=True), help="Where CIFAR-10 is.")
@click.option("--seeds", type=Whole(1, 20), default=3, help="Default runs.")
@click.option("--rounds", type=Whole(1, 20), default=5, help="Measurements of each ratio.")
@click.option("--ddp-python", type=click.Path(exists=True, path_type=Path), help="Python that has PyTorch.")
@click.option("--parts", type=CommaList(click.Choice(list(PARTS))), default=",".join(PARTS), help="Records to write.")
def main(data_dir: Path | None, seeds: int, rounds: int, ddp_python: Path | None, parts: tuple[str, ...]) -> None:
    """Measure the figures of README, and write their records."""
    data = ("--dataset", "cifar10", *(("--data-dir", f"{data_dir}") if data_dir else ()))
    for name in parts:
        with TemporaryDirectory(prefix="headline-") as folder:
            rows = PARTS[name](data, Path(folder), seeds, rounds, ddp_python)
        keep(RECORDS / f"{name}.json", rows, FIGURES)
        for row in rows:
            print_line(f"{row['figure']}: {FIGURES['values'].text(row['values'], row.get('digits'))}")


if __name__ == "__main__":
    main()
