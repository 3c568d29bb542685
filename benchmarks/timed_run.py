"""Measure a local cluster over some seconds of steady training, then drain the run.

    python -m benchmarks.timed_run [--warm-up SECONDS] RUN_DIR SECONDS

The warm-up begins when every worker has an update applied, so the result excludes the start-up. The last line of the output
is `ps_cluster.tools.bench.arms.Measured`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from ps_cluster.config import load_config
from ps_cluster.errors import RunFailed
from ps_cluster.report.progress import PlainView
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.tables import read_csv
from ps_cluster.tools.bench.arms import Measured
from ps_cluster.tools.bench.cluster_arm import run_cluster


class StartView(PlainView):
    """A view that notes when every worker has an update.

    Attributes:
      all_train_since: when the view noticed this, in unix seconds; None before then.
    """

    def __init__(self, workers: int, when_all_train: Callable[[], None]):
        super().__init__(sys.stdout, time.monotonic)
        self.all_train_since: float | None = None
        self._workers = workers
        self._when_all_train = when_all_train

    def progress(self, row: ProgressRow) -> None:
        super().progress(row)
        all_train = row.phase == "training" and len({worker.index for worker in row.workers}) == self._workers
        if all_train and self.all_train_since is None:
            self.all_train_since = time.time()
            self._when_all_train()


def rate_between(applied: np.ndarray, began: float, ended: float) -> float:
    """Return the updates per second in the interval from `began` to `ended`. Raises RunFailed if it has no update.

    Args:
      applied: when each update of the run was applied, float64 [updates]. All times are in unix seconds.
    """
    count = np.count_nonzero((began < applied) & (applied <= ended))
    if not count:
        raise RunFailed(f"no update within {ended - began:.1f} s")
    return float(count / (ended - began))


@click.command()
@click.option(
    "--warm-up", "warm_up_s", type=float, default=0.0, help="Train for this many seconds before the measurement begins."
)
@click.argument("root", type=click.Path(path_type=Path))
@click.argument("seconds", type=float)
def main(root: Path, seconds: float, warm_up_s: float) -> None:
    """Measure a run in the folder ROOT over some SECONDS of training."""
    run_dir = RunDir.open(root)
    config = load_config(run_dir.config)
    # The launcher treats SIGINT as Ctrl-C, and drains the run.
    stop = threading.Timer(warm_up_s + seconds, os.kill, (os.getpid(), signal.SIGINT))
    view = StartView(config.cluster.workers, stop.start)
    summary = run_cluster(root, view=view)
    stop.cancel()
    if view.all_train_since is None or summary.outcome != "stopped":
        raise RunFailed("the training ended before the measurement was over")
    began = view.all_train_since + warm_up_s
    rate = rate_between(read_csv(run_dir.updates)["applied_time"], began, began + seconds)
    memory = summary.peak_memory_bytes
    print(Measured(examples_per_second=rate * config.examples_per_step, peak_memory_bytes=memory).model_dump_json())


if __name__ == "__main__":
    main()
