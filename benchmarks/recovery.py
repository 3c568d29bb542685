"""Measure what faults cost: recovery times, throughput while a worker is away, and the cost of snapshots.

    python -m benchmarks.recovery --rounds 3 --data-dir DATA

Every round starts the default training, kills worker 1, waits until its new process has an update applied, kills the
parameter server, waits until training continues, and drains. It also measures a run with and one without snapshots.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.in_turns import open_data
from benchmarks.records import Column, keep, print_table
from ps_cluster.cli.command_line import OUTPUT_FILE, OneLineCommand, Whole
from ps_cluster.config.datasets import DATASETS
from ps_cluster.errors import RunFailed
from ps_cluster.files.json_files import read_json, read_rows
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.proof import read_csv
from ps_cluster.runs.result_rows import ProgressRow, Summary, with_work
from ps_cluster.runs.rows import ClusterFile
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.environment import die_with_parent
from ps_cluster.tools.bench.arms import CLUSTER
from ps_cluster.tools.bench.throughput import case, measure_once, scratch

NETWORK, PRECISION = "airbench", "bfloat16"
WAIT_S = 120.0
STEADY_S = 15.0  # seconds of training before the first fault, over which "before" is measured


@click.command(cls=OneLineCommand)
@click.option("--rounds", type=Whole(1, 100), default=3)
@click.option("--dataset", type=click.Choice(DATASETS.names), default="auto")
@click.option("--data-dir", type=click.Path(path_type=Path))
@click.option("--output", type=OUTPUT_FILE, help="Also write every figure to this JSON file, as a record.")
def main(rounds: int, dataset: str, data_dir: Path | None, output: Path | None) -> None:
    """Measure what a fault costs."""
    packed = open_data(dataset, data_dir)
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        without = case(NETWORK, PRECISION, packed)
        pair = (without, without.with_values({"checkpoints.snapshot_every_seconds": 2.0}))
        order = (0, 1) if number % 2 == 0 else (1, 0)  # alternate: a drift of the machine is fair to both
        rates = {which: measure_once(CLUSTER, pair[which], packed) for which in order}
        ratio = {"throughput with snapshots every 2 s / without": rates[1] / rates[0]}
        with scratch() as folder:
            measured = ratio | _disturbed(RunDir(folder / "run"), packed.name, data_dir)
        for name, value in measured.items():
            found.setdefault(name, []).append(value)
            print_line(f"{name}: {value:.2f}")
    columns = {"measure": Column(heading="measure"), "values": Column(heading="median (lowest to highest)", digits=2)}
    record = keep(output, [{"measure": name, "values": values} for name, values in found.items()], columns)
    print_table(record)


def _disturbed(run_dir: RunDir, dataset: str, data_dir: Path | None) -> dict[str, float]:
    options = ["--run-dir", str(run_dir.root), "--no-evaluator", "--dataset", dataset]
    options += ["--model", NETWORK, "--precision", PRECISION]
    if data_dir:
        options += ["--data-dir", str(data_dir.absolute())]
    process = subprocess.Popen(
        [sys.executable, "-m", "ps_cluster", "run", *options],
        cwd=IMPORT_FOLDER,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        _wait(run_dir, lambda last: last.train_seconds > STEADY_S)
        pid, killed = _kill(run_dir, "worker", 1)
        _wait(run_dir, lambda last: any(w.index == 1 and w.pid != pid for w in last.workers))
        returned = time.time()
        time.sleep(STEADY_S)
        _, ps_killed = _kill(run_dir, "ps", 0)
        _wait(run_dir, lambda last: last.time > ps_killed and last.phase == "training")
        restored = _last(run_dir).applied
        _wait(run_dir, lambda last: last.applied > restored)
        recovered = time.time()
        process.send_signal(signal.SIGINT)
        _wait(run_dir, lambda _: process.poll() is not None)
        if process.returncode:
            raise RunFailed(f"the run ended with exit code {process.returncode}; its files: {run_dir.root}")
        rolled_back = read_json(run_dir.summary, Summary).updates.rolled_back
        times = read_csv(run_dir.updates)["applied_time"].tolist()
    finally:
        process.kill()
        process.wait()
    before = sum(killed - 10 < t <= killed for t in times) / 10
    away = sum(killed < t <= returned for t in times) / (returned - killed)
    return {
        "s until a killed worker has an update applied again": returned - killed,
        "throughput while worker 1 is away / before": away / before,
        "s until training goes on after the ps was killed": recovered - ps_killed,
        "updates rolled back": rolled_back,
        "s of work rolled back": rolled_back / before,
    }


def _kill(run_dir: RunDir, task_type: str, index: int) -> tuple[int, float]:
    tasks = read_json(run_dir.cluster, ClusterFile).tasks
    pid = next(task.pid for task in tasks if (task.type, task.index) == (task_type, index) and task.pid)
    os.kill(pid, signal.SIGKILL)
    return pid, time.time()


def _last(run_dir: RunDir) -> ProgressRow:
    rows = read_rows(run_dir.progress, ProgressRow)
    (last,) = with_work(run_dir.work, [max(rows, key=lambda row: row.time, default=ProgressRow(phase="starting"))])
    return last


def _wait(run_dir: RunDir, until: Callable[[ProgressRow], bool]) -> None:
    """Wait until the condition holds for the run's last row of progress."""
    deadline = time.monotonic() + WAIT_S
    while not until(_last(run_dir)):
        if time.monotonic() > deadline:
            raise RunFailed(f"the run did not get on within {WAIT_S:.0f} s; its files: {run_dir.root}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
