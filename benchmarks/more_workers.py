"""Measure what more workers do to a training that goes on: its loss by updates, and its test accuracy.

    python -m benchmarks.more_workers --data-dir DATA --before OTHER_CHECKOUT --output more_workers.json

Each seed is trained with 3 workers throughout; with 3 and, from the update on that is asked for, 5 (`ps-cluster scale`); and
with `--before` also by another checkout's code. What counts are updates, not seconds, so other work beside it does no harm.
Runs that are in `--runs` already are not trained again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.records import Column, keep, table
from ps_cluster.cli.command_line import FOLDER, OUTPUT_FILE, OneLineCommand, Whole
from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import last_row
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.runs.run_dir import RunDir

BEGUN, MORE, STEPS, SCALE_AT = 3, 5, 700, 200
WINDOWS = ((-50, 0), (0, 50), (50, 150), (150, 300))  # updates from the first one of a newcomer on
# The rate stays as it is, so that nothing but the number of workers changes it.
SETTINGS = (
    "schedule.kind=constant",
    "schedule.warmup_fraction=0.2",
    "checkpoints.every_epochs=0.384",  # 150 updates
    "evaluation.after_training=true",
    "evaluation.draw_results=false",
)
COLUMNS = {
    "arm": Column(heading="workers"),
    "-50 to 0": Column(heading="loss in the 50 updates before", digits=2, spread="deviation"),
    "0 to 50": Column(heading="0 to 50 after", digits=2, spread="deviation"),
    "50 to 150": Column(heading="50 to 150", digits=2, spread="deviation"),
    "150 to 300": Column(heading="150 to 300", digits=2, spread="deviation"),
    "accuracy": Column(heading=f"test accuracy after {STEPS} updates [%]", digits=1, spread="deviation"),
}


@click.command(cls=OneLineCommand)
@click.option("--data-dir", type=FOLDER, required=True, help="Folder of CIFAR-10.")
@click.option("--before", type=FOLDER, help="Another checkout, whose code is measured too.")
@click.option("--seeds", type=Whole(1, 100), default=5, help="Trainings of each kind.")
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs/more_workers"), help="Folder of the runs.")
@click.option("--output", type=OUTPUT_FILE, help="Write the record to this file.")
def main(data_dir: Path, before: Path | None, seeds: int, runs: Path, output: Path | None) -> None:
    """Measure what more workers do to a training that goes on."""
    runs = runs.resolve()
    runs.mkdir(parents=True, exist_ok=True)
    arms = {f"{BEGUN} throughout": (IMPORT_FOLDER, False), f"{BEGUN}, then {MORE}": (IMPORT_FOLDER, True)}
    if before is not None:
        arms[f"{BEGUN}, then {MORE}, code before"] = (before, True)
    measured: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
    for seed in range(seeds):
        joined = SCALE_AT
        for arm, (project, scales) in sorted(arms.items(), key=lambda item: not item[1][1]):  # those that scale first
            run_dir = RunDir(runs / f"{arm.replace(', ', '-').replace(' ', '-')}-{seed}")
            if not run_dir.summary.exists():
                train(project, run_dir, data_dir, seed, scales=scales)
            rows = np.sort(np.genfromtxt(run_dir.updates, delimiter=",", names=True), order="version")
            if scales:
                joined = int(np.argmax(rows["worker"] >= BEGUN))
            measured[arm].append(figures(rows["loss"], joined, run_dir))
            print_line(f"{arm}, seed {seed}: {measured[arm][-1]}")
    rows_of_table: list[dict[str, Any]] = [
        {"arm": arm, **{name: [one[name] for one in found] for name in found[0]}} for arm, found in measured.items()
    ]
    for line in table([keep(output, rows_of_table, COLUMNS)]).splitlines():
        print_line(line)


def figures(loss: np.ndarray, joined: int, run_dir: RunDir) -> dict[str, float]:
    """Return the figures of one run. `loss`: float64 [updates], in the order in which they were applied."""
    means = {f"{first} to {end}": float(loss[joined + first : joined + end].mean()) for first, end in WINDOWS}
    summary = json.loads(run_dir.summary.read_text())
    return means | {"accuracy": 100 * summary["evaluation"]["test_accuracy"]}


def train(project: Path, run_dir: RunDir, data_dir: Path, seed: int, *, scales: bool) -> None:
    """Train with the code of `project`. Raises UserError where that fails."""
    words = ["--model", "tutorial_cnn", "--workers", BEGUN, "--max-workers", MORE, "--steps", STEPS, "--seed", seed]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "cli.py", "run", *words, "--data-dir", data_dir, "--run-dir", run_dir.root]
    process = subprocess.Popen([str(word) for word in command], cwd=project, stdout=subprocess.DEVNULL)
    if scales and any(applied >= SCALE_AT for applied in progress(process, run_dir)):
        scale = [sys.executable, "cli.py", "scale", str(run_dir.root), "--workers", str(MORE)]
        subprocess.run(scale, cwd=project, stdout=subprocess.DEVNULL, check=True)
    if process.wait():
        raise UserError(f"the run in '{run_dir.root}' failed: see its logs")


def progress(process: subprocess.Popen[bytes], run_dir: RunDir) -> Iterator[int]:
    """Yield the updates applied so far, while the process lives."""
    while process.poll() is None:
        row = last_row(run_dir.progress, ProgressRow) if run_dir.progress.exists() else None
        yield row.applied if row else 0
        time.sleep(0.2)


if __name__ == "__main__":
    main()
