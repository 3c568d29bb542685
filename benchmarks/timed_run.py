"""Measure a local cluster over some seconds of steady training, then drain the run.

    python -m benchmarks.timed_run [--warm-up SECONDS] RUN_DIR SECONDS [MODULE ARGUMENTS]

The seconds begin when every worker has an update applied, so the figures exclude the start-up, and then after the warm-up.
The last line that it prints is the result, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from ps_cluster.config import RunConfig, load_config
from ps_cluster.report.progress import PlainView
from ps_cluster.runs.phases import phase_shares
from ps_cluster.runs.proof import read_csv
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.system.usage import cpu_seconds
from ps_cluster.tools.bench.arms import run_cluster


@dataclass(frozen=True)
class UsageAt:
    """Time and resource use of the processes at one moment."""

    time: float  # unix s
    cpu_seconds: Mapping[str, float]  # of all tasks of a type


class TimedView(PlainView):
    """Asks the launcher, as Ctrl-C does, to end training `seconds` after the warm-up.

    The warm-up begins with the first row of progress in which every worker has an update.

    Attributes:
      looks: one per row of progress after the warm-up.
    """

    def __init__(self, seconds: float, warm_up_s: float = 0.0):
        super().__init__(sys.stdout, time.monotonic)
        self.looks: list[UsageAt] = []
        self._wanted = seconds
        self._warm_up_s = warm_up_s
        self._trains_since: float | None = None  # unix s
        self._stopped = False

    @property
    def seconds(self) -> float:
        return self.looks[-1].time - self.looks[0].time if self.looks else 0.0

    def progress(self, row: ProgressRow) -> None:
        super().progress(row)
        if row.phase == "training" and self._all_have_an_update(row):
            now = time.time()
            self._trains_since = now if self._trains_since is None else self._trains_since
            if now < self._trains_since + self._warm_up_s:
                return
            self.looks.append(UsageAt(now, self._cpu_seconds()))
            if self.seconds >= self._wanted and not self._stopped:
                self._stopped = True
                os.kill(os.getpid(), signal.SIGINT)

    def _all_have_an_update(self, row: ProgressRow) -> bool:
        state = self._state
        return state is not None and len({worker.index for worker in row.workers}) == state.config.cluster.workers

    def _cpu_seconds(self) -> dict[str, float]:
        taken: dict[str, float] = defaultdict(float)
        for task in self._state.tasks if self._state else ():
            if task.pid is not None:
                taken[task.task.type] += cpu_seconds(task.pid) or 0.0
        return taken


def figures(
    config: RunConfig, rows: np.ndarray, begin: UsageAt, end: UsageAt, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what happened between two looks, in seconds and bytes.

    Args:
      rows: the ledger, of `ledger.ROW`.
      summary: of the run. Its staleness and peak memory are those of the whole run, including the last checkpoint.
    Raises:
      RuntimeError: no update was applied between the looks.
    """
    rows = rows[(begin.time < rows["applied_time"]) & (rows["applied_time"] <= end.time)]
    if not len(rows):
        raise RuntimeError(f"no update within {end.time - begin.time:.1f} s")
    per_second = len(rows) / (end.time - begin.time)
    parameters = sum(server["parameters"] for server in summary["parameter_servers"])
    shares = list(phase_shares(rows).values())
    return {
        "steps_per_second": per_second,
        "examples_per_second": per_second * config.examples_per_step,
        # Pulled and pushed, by all workers together.
        "bytes_per_second": per_second * 2 * parameters * (2 if config.wire == "bfloat16" else 4),
        "pull_seconds": float(np.median(rows["pulled_time"] - rows["admitted_time"])),
        "push_seconds": float(np.median(rows["applied_time"] - rows["pushed_time"])),
        "shares": {phase: float(np.mean([share[phase] for share in shares])) for phase in shares[0]},
        "cpu_seconds_per_step": {
            kind: (taken - begin.cpu_seconds[kind]) / len(rows) for kind, taken in end.cpu_seconds.items()
        },
        "staleness": {name: summary["staleness"][name] for name in ("mean", "p95", "max")},
        "peak_memory_bytes": summary["peak_memory_bytes"],
    }


@click.command()
@click.option("--warm-up", "warm_up_s", type=float, default=0.0, help="Seconds of training before the measured ones.")
@click.argument("root", type=click.Path(path_type=Path))
@click.argument("seconds", type=float)
@click.argument("body", nargs=-1)
def main(root: Path, seconds: float, body: tuple[str, ...], warm_up_s: float) -> None:
    """Measure a run in the folder ROOT over some SECONDS of training."""
    view = TimedView(seconds, warm_up_s)
    run_dir = run_cluster(root, list(body), view)
    if view.seconds < seconds:
        raise RuntimeError(f"the training was over after {view.seconds:.1f} s")
    summary = json.loads(run_dir.summary.read_text())
    found = figures(load_config(run_dir.config), read_csv(run_dir.updates), view.looks[0], view.looks[-1], summary)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
