"""Train on more data than memory, and watch the memory of the workers: their own beside what they map of the data.

    python -m benchmarks.large_data --gigabytes 20 --seconds 120

Makes a set of images as .npy files, packs it as a user's own data, and trains on it. The disk needs twice the size. The
workers' own memory (RssAnon) should not grow; what they map (RssFile) is in the page cache, which the system takes back
when anybody needs memory. Prints a table over time, and the growth of the workers' own memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import psutil

from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.rows import ClusterFile
from ps_cluster.runs.run_dir import RunDir

SHAPE = (64, 64, 3)
ROW_BYTES = int(np.prod(SHAPE))
CLASSES = 10
TEST_EXAMPLES = 1000
_ROWS_AT_ONCE = 2**9
MB = 2**20


class MemoryAt(NamedTuple):
    """Memory at one moment, in MB. Of each worker: its own, and what it has mapped; and the page cache of the machine."""

    seconds: float
    own: tuple[float, ...]
    mapped: tuple[float, ...]
    cached: float


@click.command()
@click.option("--gigabytes", type=click.FloatRange(0.01, 10_000), default=20.0, help="Size of the training images.")
@click.option("--seconds", type=click.FloatRange(5, 100_000), default=120.0, help="Of training.")
@click.option("--workers", type=click.IntRange(1, 8), default=2)
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Where there is room; else the system's.")
def main(gigabytes: float, seconds: float, workers: int, folder: Path | None) -> None:
    """Measure the workers' memory on a set of GIGABYTES."""
    with tempfile.TemporaryDirectory(prefix="large-data-", dir=folder) as place:
        root = Path(place)
        make(root / "set", round(gigabytes * 1e9 / ROW_BYTES))
        looks = watched(root, workers, seconds)
    for line in table(looks):
        print_line(line)
    print_line(growth(looks))


def make(folder: Path, examples: int) -> None:
    """Write x_train.npy, y_train.npy and so on: images of noise, a little lighter in each further class."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for split, count in (("train", max(_ROWS_AT_ONCE, examples)), ("test", TEST_EXAMPLES)):
        labels = (np.arange(count) % CLASSES).astype(np.uint8)
        np.save(folder / f"y_{split}.npy", labels)
        images = np.lib.format.open_memmap(folder / f"x_{split}.npy", "w+", np.uint8, (count, *SHAPE))
        noise = draw.integers(0, 200, (_ROWS_AT_ONCE, *SHAPE), np.uint8)
        for start in range(0, count, _ROWS_AT_ONCE):
            part = labels[start : start + _ROWS_AT_ONCE]
            images[start : start + len(part)] = noise[: len(part)] + 5 * part[:, None, None, None]
        images.flush()


def watched(root: Path, workers: int, seconds: float) -> list[MemoryAt]:
    """Train on the set in `root`, and look at the memory every few seconds of training. Stops the run as Ctrl-C does."""
    command = ["-m", "ps_cluster", "run", "--dataset", str(root / "set"), "--model", "mlp", "--steps", "1000000"]
    more = ["--workers", str(workers), "--no-evaluator", "--run-dir", str(root / "run")]
    environment = os.environ | {"PS_CLUSTER_CACHE": str(root / "cache")}
    with subprocess.Popen([sys.executable, *command, *more], env=environment) as run:
        try:
            pids = _workers_of(run, RunDir(root / "run"))
            began, looks = time.monotonic(), []
            while (passed := time.monotonic() - began) < seconds and run.poll() is None:
                looks.append(look(passed, pids))
                time.sleep(max(1.0, seconds / 20))
        finally:
            run.send_signal(signal.SIGINT)
    return looks


def _workers_of(run: subprocess.Popen[bytes], run_dir: RunDir) -> list[int]:
    """Return the pids of the workers, once they train."""
    while run.poll() is None:
        if run_dir.progress.is_file():
            tasks = read_json(run_dir.cluster, ClusterFile).tasks
            return [task.pid for task in tasks if task.type == "worker" and task.pid]
        time.sleep(1.0)
    raise UserError("the run ended before it trained")


def look(seconds: float, pids: list[int]) -> MemoryAt:
    """Return the memory of the workers and of the page cache."""
    mapped = tuple(psutil.Process(pid).memory_info().shared / MB for pid in pids)
    return MemoryAt(seconds, tuple(map(own_memory, pids)), mapped, psutil.virtual_memory().cached / MB)


def own_memory(pid: int) -> float:
    """Return what a process has for itself (RssAnon), in MB. Raises psutil.NoSuchProcess where it has ended."""
    memory = psutil.Process(pid).memory_info()
    return float(memory.rss - memory.shared) / MB


def table(looks: list[MemoryAt]) -> list[str]:
    """Return the lines of a table."""
    rows = ["| s | workers' own memory [MB] | mapped by them [MB] | page cache [MB] |", "|---|---|---|---|"]
    for one in looks:
        own, mapped = (", ".join(f"{value:,.0f}" for value in values) for values in (one.own, one.mapped))
        rows.append(f"| {one.seconds:.0f} | {own} | {mapped} | {one.cached:,.0f} |")
    return rows


def growth(looks: list[MemoryAt]) -> str:
    """Return how much the workers' own memory has grown from the second quarter, when all is built, to the last."""
    quarter = max(1, len(looks) // 4)
    first, last = (np.mean([sum(one.own) for one in part]) for part in (looks[quarter : 2 * quarter], looks[-quarter:]))
    return f"own memory of all workers: {first:,.0f} MB in the second quarter, {last:,.0f} MB in the last"


if __name__ == "__main__":
    main()
