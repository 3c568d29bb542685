"""Write the rows of a training's progress, to metrics/progress.jsonl and for TensorBoard, and what TensorBoard shows of scores.

TensorFlow is imported only when a writer is made.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ps_cluster.config import ChangedSetting, RunConfig, changed, telling
from ps_cluster.config.lazy import tf
from ps_cluster.files import writing
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.runs.leaders import Superseded
from ps_cluster.runs.logs import DISK_REFUSES
from ps_cluster.runs.result_rows import SAVING, ProgressRow, TrainingResult, WorkFile
from ps_cluster.runs.run_dir import RunDir, say

if TYPE_CHECKING:
    from PIL import Image

    from ps_cluster.training.run_progress import RunProgress

ROW_EVERY_S = 0.5
STALENESS_EVERY_S = 5.0
TRAINING = ("loss", "accuracy", "error", "learning_rate", "staleness_mean", "examples_per_second")
EVALUATION = (
    *("test_accuracy", "test_error", "test_loss", "validation_accuracy", "validation_error", "validation_loss"),
    "train_seconds",
)

BARS = 30  # of a histogram

Row = Mapping[str, Any]


class Reporter:
    """Writes rows of progress to metrics/progress.jsonl and to TensorBoard."""

    def __init__(self, config: RunConfig, run_dir: RunDir, progress: RunProgress):
        self._config = config
        self._run_dir = run_dir
        self._progress = progress
        self._tensorboard: TrainingWriter | None = None
        self._staleness = progress.staleness  # of the updates whose histogram is written, or that were before a resume
        self._next_staleness_s = 0.0
        self._next_s = 0.0
        self._written = 0
        self.save_seconds: float | None = None
        self._last: ProgressRow | None = None

    def start(self) -> None:
        """Leave the updates so far out of the histograms over time; call it before the first step."""
        self._staleness = self._progress.staleness
        self._next_staleness_s = time.monotonic() + STALENESS_EVERY_S

    def row(self, phase: str) -> None:
        of_this_leader = {"written": self._written, "save_seconds": self.save_seconds}
        row = self._progress.row(phase).model_copy(update=of_this_leader)
        self._last = row.model_copy(update=WorkFile().model_dump())
        try:
            writing.check()
            write_whole(self._run_dir.work, row.model_dump_json(include=set(WorkFile.model_fields)), lasting=False)
            append_row(self._run_dir.progress, self._last)
            if phase in ("training", "ended"):
                # Not earlier: making a writer needs TensorFlow's context, which connecting resets.
                self._tensorboard = self._tensorboard or self._make_writer()
                self._tensorboard.write(row.model_dump())
                self._show_staleness(self._tensorboard, last=phase == "ended")
        except (OSError, tf.errors.OpError) as error:
            # A full disk may have room again later, and the ledger has the same numbers.
            reason = " ".join(str(error).split())[:200]
            say(DISK_REFUSES(f"training goes on, but a row can't be written: {reason}"))

    def saving(self) -> None:
        """Write the last row again, as the state is being saved. Any thread may call it."""
        if self._last is not None:
            # `monotonic` stays: it belongs to the row's times, from which the next leader goes on.
            row = self._last.model_copy(update={"phase": SAVING, "time": time.time()})
            with contextlib.suppress(OSError, Superseded):  # the save itself tells of either
                writing.check()
                append_row(self._run_dir.progress, row)

    def _make_writer(self) -> TrainingWriter:
        writer = TrainingWriter(self._run_dir)
        writer.write_settings(changed(self._config))
        if not self._config.cluster.evaluator:  # which writes them beside its scores
            writer.write_hyper_parameters(self._run_dir.root.name, telling(self._config))
        return writer

    def _show_staleness(self, writer: TrainingWriter, *, last: bool) -> None:
        """Write a histogram of the updates since the one before, if it is due."""
        if last or time.monotonic() >= self._next_staleness_s:
            now = self._progress.staleness
            writer.write_staleness("staleness", now - self._staleness, self._progress.applied)
            self._staleness, self._next_staleness_s = now, time.monotonic() + STALENESS_EVERY_S

    def row_when_due(self, phase: str) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + ROW_EVERY_S
            self.row(phase)

    def written(self, rows: int) -> None:
        """Count `rows` more rows read for the proof and tables, and write a row when due: this phase may take long."""
        self._written += rows
        self.row_when_due("writing")

    def end(self, result: TrainingResult) -> None:
        """Write the result for the launcher, and the last row."""
        write_json(self._run_dir.training_result, result.model_dump())
        self.row("ended")
        if self._tensorboard is not None:
            whole = self._progress.staleness
            with contextlib.suppress(OSError, tf.errors.OpError):  # curves can't keep a run from ending
                self._tensorboard.write_staleness("staleness of the whole run", whole, self._progress.applied)
                self._tensorboard.close()


# What TensorBoard shows.


class _Writer:
    def __init__(self, folder: Path):
        self._writer = tf.summary.create_file_writer(str(folder))

    def _scalars(self, row: Row, names: tuple[str, ...], step: int) -> None:
        with self._writer.as_default(step=step):
            for name in names:
                if row.get(name) is not None:
                    tf.summary.scalar(name, row[name])
        self._writer.flush()

    def _histogram(self, name: str, counts: np.ndarray, edges: np.ndarray, step: int) -> None:
        """Write bars as they are: TensorFlow's own operation would need every single value, and much more time."""
        from tensorboard.plugins.histogram.metadata import create_summary_metadata

        bars = np.stack([edges[:-1], edges[1:], counts], axis=1).astype(np.float64)
        with self._writer.as_default(step=step):
            tf.summary.write(name, tf.constant(bars), metadata=create_summary_metadata(None, None))

    def write_hyper_parameters(self, name: str, settings: Mapping[str, Any]) -> None:
        """Write the run's name and settings for the tab HParams, which shows this folder's scalars beside them."""
        from tensorboard.plugins.hparams import api

        with self._writer.as_default():
            api.hparams({key: _plain(value) for key, value in settings.items()}, trial_id=name)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TrainingWriter(_Writer):
    """Writes a run's rows of progress to tensorboard/training, over the updates applied."""

    def __init__(self, run_dir: RunDir):
        super().__init__(run_dir.tensorboard / "training")

    def write(self, row: Row) -> None:
        """Write a row of metrics/progress.jsonl; None values are left out."""
        self._scalars(row, TRAINING, row["applied"])

    def write_settings(self, settings: Mapping[str, ChangedSetting]) -> None:
        """Write the settings that differ from the defaults, as a table in markdown."""
        with self._writer.as_default(step=0):
            tf.summary.text("settings", _table(settings))
        self._writer.flush()

    def write_staleness(self, name: str, counts: Mapping[int, int], step: int) -> None:
        """Write a histogram: {0: 3, 1: 80} means 3 updates with a staleness of 0, 80 with 1. None is written of nothing."""
        if not counts:
            return
        values = list(counts)
        lowest, highest = min(values), max(values)
        width = -(-(highest - lowest + 1) // BARS)
        edges = np.arange(lowest, highest + width + 1, width)
        bars, _ = np.histogram(values, edges, weights=list(counts.values()))
        self._histogram(name, bars, edges, step)
        self._writer.flush()


class EvaluationWriter(_Writer):
    """Writes scores to tensorboard/evaluation, over the updates applied."""

    def __init__(self, run_dir: RunDir):
        super().__init__(run_dir.tensorboard / "evaluation")

    def write(self, row: Row) -> None:
        """Write a row of metrics/evaluation.jsonl; None values are left out."""
        self._scalars(row, EVALUATION, row["step"])

    def write_values(self, name: str, values: np.ndarray, step: int) -> None:
        """Write a histogram of values; those that are not finite are left out."""
        finite = values[np.isfinite(values)]
        if len(finite):
            wide = finite.astype(np.float64)
            # Values that are nearly equal and very large have no room for the edges between them.
            least = 1e-9 * np.abs(wide).max()
            around = (wide.min() - least, wide.max() + least) if np.ptp(wide) < least else None
            counts, edges = np.histogram(wide, BARS, around)
            self._histogram(name, counts, edges, step)

    def write_picture(self, name: str, picture: Image.Image, step: int) -> None:
        """Write a picture."""
        from tensorboard.plugins.image.metadata import create_summary_metadata

        file = BytesIO()
        picture.save(file, "png")
        content = [str(picture.width).encode(), str(picture.height).encode(), file.getvalue()]
        with self._writer.as_default(step=step):
            tf.summary.write(name, tf.constant(content), metadata=create_summary_metadata(None, None))
        self._writer.flush()


def _table(settings: Mapping[str, ChangedSetting]) -> str:
    if not settings:
        return "All settings are the defaults."
    rows = [f"| {key} | {_cell(one.value)} | {_cell(one.default)} |" for key, one in settings.items()]
    return "\n".join(["| setting | value | default |", "|---|---|---|", *rows])


def _cell(value: Any) -> str:
    """Return a value as code in markdown, in which a | is no end of a cell and a * is itself."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "`" + text.replace("`", "'") + "`"


def _plain(value: Any) -> bool | int | float | str:
    """Return a value of a setting as the tab HParams takes it."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
