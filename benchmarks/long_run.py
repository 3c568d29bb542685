"""Resume a run that has taken many steps, and measure what its ledger costs then. For `benchmarks.long_ledger`.

    python -m benchmarks.long_run RUN_DIR STEPS SECONDS close|stop

The steps compute nothing. A short run is made to look longer: its journals get generated rows, and its last checkpoint
the matching counts. The measurements are real, on a cluster that resumes it: with `close` to the end, where the tables
are written; with `stop` without them. Prints its figures as JSON in the last line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.timed_run import TimedView
from ps_cluster.config import load_config
from ps_cluster.data.packed import load_pointed
from ps_cluster.files.json_files import read_json, read_rows
from ps_cluster.launch.launcher import run_local
from ps_cluster.report.dashboard import Row
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import ACCEPTED_STEPS, Checkpoint
from ps_cluster.runs.journal import CHUNK_ROWS, Journal, Piece, history_of, read, stretch_of
from ps_cluster.runs.leaders import claim
from ps_cluster.runs.ledger import COUNTS
from ps_cluster.runs.result_rows import ProgressRow, ProgressState, StepsState, Summary
from ps_cluster.runs.run_dir import RunDir

BODY = (sys.executable, "-m", "benchmarks.empty_steps", "100")
SHORT_S = 2.0


class ResumedView(TimedView):
    """A timed view that knows the size of a snapshot and the time of the stop. It can ask twice, to stop at once."""

    def __init__(self, seconds: float, run_dir: RunDir, *, twice: bool):
        super().__init__(seconds)
        self._run_dir = run_dir
        self._twice = twice
        self.snapshot_bytes = 0
        self.asked: float | None = None

    def progress(self, row: Row) -> None:
        super().progress(row)
        sizes = [path.stat().st_size for path in self._run_dir.snapshots.glob("step-*.safetensors")]
        self.snapshot_bytes = max([self.snapshot_bytes, *sizes])
        if self._stopped and self.asked is None:
            self.asked = time.monotonic()
        elif self.asked is not None and self._twice:
            os.kill(os.getpid(), signal.SIGINT)
            self._twice = False


def lengthen(run_dir: RunDir, steps: int) -> None:
    """Make the finished run in `run_dir` look as if it had taken `steps` steps."""
    last = checkpoints.load_newest_good([run_dir.checkpoints], print)
    assert last is not None and last.meta.progress is not None, "the short run has just ended"
    counts = last.arrays["counts"].copy()
    for name in ("version", "applied", "accepted"):
        counts[:, COUNTS.index(name)] = steps
    done = StepsState(below=steps, count=steps)
    counted = {"examples": steps, "staleness": {"0": steps}, "workers": [(0, 1, steps, steps)]}
    tally = last.meta.progress.tally.model_copy(update=counted)
    progress = ProgressState(scheduled=done, applied=done, tally=tally, mixed=0)
    pieces: list[Piece] = []
    epoch = last.epoch + 1  # a leader that has made all of it
    for index in range(len(counts)):
        pattern = next(read(history_of(run_dir, last.meta.leaders, index)))[:1000].copy()
        journal = Journal(run_dir.journal(index, epoch))
        for rows in _generated(pattern, steps):
            journal.append(rows)
        journal.flush()
        journal.close()
        pieces.append(journal.piece)
    leaders = [stretch_of(pieces, epoch=epoch, step=steps)]
    meta = last.meta.model_copy(update={"examples": steps, "progress": progress, "leaders": leaders})
    claim(run_dir)
    arrays = {**last.arrays, ACCEPTED_STEPS: np.full([len(counts), 1], steps), "counts": counts}
    checkpoints.save(run_dir.checkpoints, Checkpoint(steps, arrays, meta), keep=1)


def _generated(pattern: np.ndarray, steps: int) -> Iterator[np.ndarray]:
    """Yield rows of `steps` steps from 0, repeating `pattern`."""
    for first in range(0, steps, CHUNK_ROWS):
        numbers = np.arange(first, min(first + CHUNK_ROWS, steps))
        rows = pattern[numbers % len(pattern)]
        rows["step"], rows["version"], rows["staleness"] = numbers, numbers + 1, 0
        yield rows


def main(root: Path, steps: int, seconds: float, *, close: bool) -> None:
    run_dir = RunDir.open(root)
    config, dataset = load_config(run_dir.config), load_pointed(run_dir.dataset)
    short = config.with_values({"training.steps": 10**6})
    run_local(short, run_dir, dataset, resume=False, view=TimedView(SHORT_S), task_argv=BODY)
    lengthen(run_dir, steps)
    run_dir.progress.unlink()
    view = ResumedView(seconds, run_dir, twice=not close)
    code = run_local(config, run_dir, dataset, resume=True, view=view, task_argv=BODY)
    summary = read_json(run_dir.summary, Summary)
    if code != (0 if close else 130) or view.seconds < seconds:
        raise RuntimeError(f"exit code {code} after {view.seconds:.1f} s of training")
    peaks: dict[str, int] = {}
    for process in summary.processes:
        peaks[process.type] = max(peaks.get(process.type, 0), process.peak_pss_bytes or 0)
    training = [row for row in read_rows(run_dir.progress, ProgressRow) if row.phase == "training"]
    print(json.dumps({
        "steps_per_second": (training[-1].applied - training[0].applied) / view.seconds,
        "peak_pss_bytes": peaks,
        "snapshot_bytes": view.snapshot_bytes,
        "save_seconds": float(np.median([row.save_seconds for row in training if row.save_seconds])),
        "close_seconds": time.monotonic() - view.asked if close and view.asked else None,
        "holds": summary.proof and summary.proof.holds,
    }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), close=sys.argv[4] == "close")
