"""Write the rows of a training's progress to metrics/progress.jsonl, and to files for TensorBoard.

TensorFlow is imported only when a TensorBoard writer is created.
"""

from __future__ import annotations

import contextlib
import time

from ps_cluster.config import RunConfig, changed, distinguishing_settings
from ps_cluster.config.lazy import tf
from ps_cluster.files import writing
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.runs.leaders import Superseded
from ps_cluster.runs.logs import DISK_REFUSES
from ps_cluster.runs.result_rows import ProgressRow, TrainingResult, WorkFile
from ps_cluster.runs.run_dir import RunDir, log_line
from ps_cluster.runs.training_phases import Phase
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.tensorboard_files import TrainingWriter

ROW_EVERY_S = 0.5
STALENESS_EVERY_S = 5.0


class Reporter:
    """Writes progress rows to metrics/progress.jsonl and to TensorBoard."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        progress: RunProgress,
        *,
        metric: str = "accuracy",
        life: str | None = None,
    ):
        """Create a reporter.

        Args:
          metric: the field of a progress row that holds the objective's metric (config/objectives.py).
          life: the unique id of the launcher's process, for progress rows; None without a launcher.
        """
        self._config = config
        self._run_dir = run_dir
        self._progress = progress
        self._metric, self._life = metric, life
        self._tensorboard: TrainingWriter | None = None
        self._staleness = progress.tally.staleness.copy()  # the counts at the last histogram, or at a resume
        self._next_staleness_s = 0.0
        self._next_s = 0.0
        self._written = 0
        self.save_seconds: float | None = None
        self._last: ProgressRow | None = None

    def start(self) -> None:
        """Begin the periodic staleness histograms. Call this before the first step.

        After a resume, they do not count earlier updates.
        """
        self._staleness = self._progress.tally.staleness.copy()
        self._next_staleness_s = time.monotonic() + STALENESS_EVERY_S

    def take_row(self, phase: Phase) -> ProgressRow:
        """Return the next row for metrics/progress.jsonl. Its means are over the updates since the previous call."""
        progress, means = self._progress, self._progress.means.take()
        times, metric = progress.clock.times, means.metric
        return ProgressRow(
            time=progress.clock.unix,
            monotonic=progress.clock.monotonic,
            life=self._life,
            phase=phase,
            applied=progress.applied,
            scheduled=progress.scheduled_updates.count,
            total=progress.total,
            examples=progress.examples,
            examples_per_second=progress.speed.examples_per_second,
            train_seconds=times.seconds,
            times=times,
            epoch=progress.epochs,
            loss=means.loss,
            diverged=means.diverged,
            # The sums are rounded, so a share may be above 1 by a rounding error.
            accuracy=min(metric, 1.0) if metric is not None and self._metric == "accuracy" else None,
            error=metric if self._metric == "error" else None,
            learning_rate=means.learning_rate,
            staleness_mean=means.staleness,
            staleness=progress.tally.staleness_buckets(),
            goodput=times.goodput,
            dropped=max(of_shard.dropped for of_shard in progress.counts_of_shards),
            workers=progress.tally.workers(),
            dispatches=progress.dispatch_pids(),
            written=self._written,
            save_seconds=self.save_seconds,
            longest_wait_seconds=progress.pace.longest_wait_s,
        )

    def row(self, phase: Phase) -> None:
        """Write a progress row with this `phase` at once.

        If the disk refuses it, the log reports this, and training continues.
        """
        row = self.take_row(phase)
        self._last = row.model_copy(update=WorkFile().model_dump())
        try:
            writing.check_fence()
            write_whole(self._run_dir.work, row.model_dump_json(include=set(WorkFile.model_fields)), lasting=False)
            append_row(self._run_dir.progress, self._last)
            if phase in ("training", "ended"):
                # The writer can't be created earlier: it needs TensorFlow's context, which connecting resets.
                self._tensorboard = self._tensorboard or self._make_writer()
                self._tensorboard.write(row)
                self._show_staleness(self._tensorboard, last=phase == "ended")
        except (OSError, tf.errors.OpError) as error:
            # A full disk may have room again later, and the ledger has the same numbers.
            log_line(
                DISK_REFUSES(f"training continues, but a progress row can't be written: {one_line(str(error), 200)}")
            )

    def saving(self) -> None:
        """Write the last row again, with phase "saving". Any thread may call this."""
        if self._last is not None:
            # `monotonic` stays the same: it belongs to the row's times, from which the next leader continues.
            row = self._last.model_copy(update={"phase": "saving", "time": time.time()})
            with contextlib.suppress(OSError, Superseded):  # the save itself reports both errors
                writing.check_fence()
                append_row(self._run_dir.progress, row)

    def _make_writer(self) -> TrainingWriter:
        writer = TrainingWriter(self._run_dir)
        writer.write_settings(changed(self._config))
        if not self._config.cluster.evaluator:  # an evaluator writes them together with its scores
            writer.write_hyper_parameters(self._run_dir.root.name, distinguishing_settings(self._config))
        return writer

    def _show_staleness(self, writer: TrainingWriter, *, last: bool) -> None:
        """Write a staleness histogram of the updates since the previous histogram, if a histogram is due."""
        if last or time.monotonic() >= self._next_staleness_s:
            now = self._progress.tally.staleness.copy()
            writer.write_staleness("staleness", now - self._staleness, self._progress.applied)
            self._staleness, self._next_staleness_s = now, time.monotonic() + STALENESS_EVERY_S

    def row_when_due(self, phase: Phase) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + ROW_EVERY_S
            self.row(phase)

    def written(self, rows: int) -> None:
        """Count ledger rows that were read after the training, and write a progress row when one is due.

        The ledger is read for the proof (the check of all its rows) and for its CSV files. Without progress rows, this
        phase, "writing", would look like a standstill.

        Args:
          rows: the number of ledger rows read since the previous call.
        """
        self._written += rows
        self.row_when_due("writing")

    def end(self, result: TrainingResult) -> None:
        """Write the result for the launcher, and the last progress row."""
        write_json(self._run_dir.training_result, result.model_dump())
        self.row("ended")
        if self._tensorboard is not None:
            # A failure to write curves must not keep a run from ending.
            with contextlib.suppress(OSError, tf.errors.OpError):
                self._tensorboard.write_staleness(
                    "staleness of the whole run", self._progress.tally.staleness, self._progress.applied
                )
                self._tensorboard.close()
