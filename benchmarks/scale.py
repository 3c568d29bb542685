"""Measure what grows with workers and parameter servers, for docs/results.md; no training.

    python -m benchmarks.scale --ps 1,4,16 --workers 1,16

The servers of the first table are all on this machine, in one process with the chief (`benchmarks.cluster_in_one`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import click
import numpy as np

from benchmarks.in_turns import Case, Figures, measure, medians, print_table
from ps_cluster.cli.options import CommaList, OneLineCommand, Whole
from ps_cluster.config import build_config
from ps_cluster.config.modes import CHIEF, PS, TRAINING_TYPES, WORKER, Task
from ps_cluster.errors import RunFailed
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.report.terminal import make_console
from ps_cluster.runs import proof
from ps_cluster.runs.journal import RECORD, Journal
from ps_cluster.runs.ledger import COUNTS, ROW
from ps_cluster.runs.proof import RoundShape
from ps_cluster.server.store import Ledgers
from ps_cluster.training.run_progress import Bookkeeper, RunProgress

LIMIT_S = 600
ROWS, LOOKS = 1000, 20  # of each slice, in each look
CHIEF_COLUMNS = (
    medians("look [ms]\nat once/one by one", ["look", "look_one_by_one"], ".1f", 1e3),
    medians("snapshot [ms]\nat once/one by one", ["snapshot", "snapshot_one_by_one"], ".0f", 1e3),
    medians("dispatch\n[µs]", ["dispatch"], ".0f", 1e6),
)
LEDGER_COLUMNS = (
    medians("steps/s\ntaken in", ["rows_per_second"], ",.0f"),
    medians("bytes a step\njournals/updates.csv/applies.csv", ["journals", "updates", "applies"], ",.0f"),
)
NAME_COLUMNS = (medians("TF_CONFIG\n[bytes]", ["tf_config"], ",.0f"),)


@click.command(cls=OneLineCommand)
@click.option("--rounds", type=Whole(1), default=3)
@click.option("--ps", "servers", type=CommaList(Whole(1, 256)), default="1,4,16")
@click.option("--workers", type=CommaList(Whole(1, 1000)), default="1,16")
@click.option("--weights", type=Whole(1), default=1_000_000)
def main(rounds: int, servers: tuple[int, ...], workers: tuple[int, ...], weights: int) -> None:
    """Measure the chief's work, its ledger, and the size of what names the cluster."""
    console = make_console()
    sizes = [(count, 1) for count in servers] + [(1, count) for count in workers if count > 1]
    chief = [Case({"ps": ps, "workers": count}, partial(in_one, ps, count, weights)) for ps, count in sizes]
    print_table(f"{weights:,} weights, n = {rounds}", measure(chief, rounds, None), CHIEF_COLUMNS, console)
    ledger = [Case({"ps": ps}, partial(of_ledger, ps)) for ps in servers]
    print_table(f"{ROWS:,} rows a look, n = {rounds}", measure(ledger, rounds, None), LEDGER_COLUMNS, console)
    names = [
        Case({"workers": count, "ps": ps}, partial(of_names, ps, count)) for ps in (1, 256) for count in (10, 100, 1000)
    ]
    print_table("host-123.cluster.example:2222", measure(names, 1, None), NAME_COLUMNS, console)


def in_one(ps: int, workers: int, weights: int) -> Figures:
    """Return the figures of `benchmarks.cluster_in_one`. Raises RunFailed if it fails."""
    argv = [sys.executable, "-m", "benchmarks.cluster_in_one", *map(str, (ps, workers, weights))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RunFailed(f"{ps} ps and {workers} workers in one process: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(first: int) -> np.ndarray:
    """Return rows of the steps from `first` on, with values as long as real ones are."""
    rows = np.zeros(ROWS, ROW)
    for name in ROW.names or ():
        rows[name] = time.time() + np.random.default_rng(0).random(ROWS) if name.endswith("_time") else 0.123456789
    steps = first + np.arange(ROWS)
    rows["step"], rows["version"], rows["staleness"], rows["worker"], rows["pid"] = steps, steps + 1, 3, 1, 12345
    rows["examples"], rows["metric"] = 128, 64
    return rows


class _Store:
    """Slices with `ROWS` new rows in every look."""

    def __init__(self, slices: int):
        self._slices, self._taken = slices, 0

    def read_ledgers(self, firsts: list[int]) -> Ledgers:
        rows = rows_of(self._taken)
        self._taken += len(rows)
        counts = np.zeros([self._slices, len(COUNTS)], np.int64)
        counts[:, :3] = self._taken
        return Ledgers([rows] * self._slices, counts)


def of_ledger(ps: int) -> Figures:
    """Return how many steps a second the chief takes in, and what a step takes on the disk."""
    config = build_config(overrides={"training.steps": 10**6, "cluster.parameter_servers": ps})
    progress = RunProgress(config, 50_000)
    with tempfile.TemporaryDirectory() as folder:
        journals = [Journal(Path(folder) / f"slice-{index}.bin") for index in range(ps)]
        books = Bookkeeper(_Store(ps), progress, journals)  # type: ignore[arg-type]
        began = time.perf_counter()
        for _ in range(LOOKS):
            books.look()
        per_second = ROWS * LOOKS / (time.perf_counter() - began)
        histories = [[piece] for piece in books.pieces]
        for journal in journals:
            journal.close()
        written = {"updates": Path(folder) / "updates.csv", "applies": Path(folder) / "applies.csv"}
        proof.write_updates(written["updates"], histories, RoundShape(1, 1), config.ledger_window)
        proof.write_applies(written["applies"], histories)
        sizes = {name: path.stat().st_size / (ROWS * LOOKS) for name, path in written.items()}
    return {"rows_per_second": per_second, "journals": ps * RECORD.itemsize, **sizes}


def of_names(ps: int, workers: int) -> Figures:
    counts = {CHIEF: 1, PS: ps, WORKER: workers}
    cluster = {
        kind: [f"host-{index:03d}.cluster.example:2222" for index in range(counts[kind])] for kind in TRAINING_TYPES
    }
    return {"tf_config": len(ClusterTopology(cluster).tf_config(Task(CHIEF, 0)))}


if __name__ == "__main__":
    main()
