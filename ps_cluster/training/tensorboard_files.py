"""Write the files that TensorBoard shows.

TensorBoard's modules are imported in the methods that need them, because `hparams.api` imports TensorFlow at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ps_cluster.config.changes import ChangedSetting
from ps_cluster.config.lazy import tf
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow
from ps_cluster.runs.run_dir import RunDir

if TYPE_CHECKING:  # needed only to write pictures
    from PIL import Image

BARS = 30  # the number of bars of a histogram


class _Writer:
    def __init__(self, folder: Path):
        self._writer = tf.summary.create_file_writer(str(folder))

    def _scalars(self, values: Mapping[str, float | None], step: int) -> None:
        """Write values by name, except those that are None."""
        with self._writer.as_default(step=step):
            for name, value in values.items():
                if value is not None:
                    tf.summary.scalar(name, value)
        self._writer.flush()

    def _histogram(self, name: str, counts: np.ndarray, edges: np.ndarray, step: int) -> None:
        """Write a histogram from its bars. TensorFlow's operation would need every single value and take much longer."""
        from tensorboard.plugins.histogram.metadata import create_summary_metadata

        bars = np.stack([edges[:-1], edges[1:], counts], axis=1).astype(np.float64)
        with self._writer.as_default(step=step):
            tf.summary.write(name, tf.constant(bars), metadata=create_summary_metadata(None, None))

    def write_hyper_parameters(self, name: str, settings: Mapping[str, Any]) -> None:
        """Write the run's name and settings for the tab HParams, which shows them with this folder's scalars."""
        from tensorboard.plugins.hparams import api

        with self._writer.as_default():
            api.hparams({key: _plain(value) for key, value in settings.items()}, trial_id=name)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TrainingWriter(_Writer):
    """Writes a run's progress rows to tensorboard/training. TensorBoard's step is the number of updates applied."""

    def __init__(self, run_dir: RunDir):
        super().__init__(run_dir.tensorboard / "training")

    def write(self, row: ProgressRow) -> None:
        """Write a row of metrics/progress.jsonl, except values that are None."""
        values = {
            "loss": row.loss,
            "accuracy": row.accuracy,
            "error": row.error,
            "learning_rate": row.learning_rate,
            "staleness_mean": row.staleness_mean,
            "examples_per_second": row.examples_per_second,
        }
        self._scalars(values, row.applied)

    def write_settings(self, settings: Mapping[str, ChangedSetting]) -> None:
        """Write the settings that differ from the defaults, as a table in markdown."""
        with self._writer.as_default(step=0):
            tf.summary.text("settings", _table(settings))
        self._writer.flush()

    def write_staleness(self, name: str, counts: Mapping[int, int], step: int) -> None:
        """Write a histogram. {0: 3, 1: 80} means 3 updates with staleness 0 and 80 with 1. Empty counts are not written."""
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
    """Writes scores to tensorboard/evaluation. TensorBoard's step is the number of updates applied."""

    def __init__(self, run_dir: RunDir):
        super().__init__(run_dir.tensorboard / "evaluation")

    def write(self, row: EvaluationRow) -> None:
        """Write a row of metrics/evaluation.jsonl, except values that are None."""
        further = {f"test_{name}": value for name, value in (row.metrics | row.compiled).items()}
        held_out = row.validation_metrics | row.validation_compiled
        further |= {f"validation_{name}": value for name, value in held_out.items()}
        values = {
            "test_accuracy": row.test_accuracy,
            "test_error": row.test_error,
            "test_loss": row.test_loss,
            "validation_accuracy": row.validation_accuracy,
            "validation_error": row.validation_error,
            "validation_loss": row.validation_loss,
            "train_seconds": row.train_seconds,
        }
        self._scalars(further | values, row.step)

    def write_values(self, name: str, values: np.ndarray, step: int) -> None:
        """Write a histogram of the finite values."""
        finite = values[np.isfinite(values)]
        if len(finite):
            wide = finite.astype(np.float64)
            # Between values that are nearly equal and very large, there are too few floats for the edges of the bars.
            least = 1e-9 * np.abs(wide).max()
            around = (wide.min() - least, wide.max() + least) if np.ptp(wide) < least else None
            counts, edges = np.histogram(wide, BARS, around)
            self._histogram(name, counts, edges, step)

    def write_predictions(self, picture: Image.Image, step: int) -> None:
        """Write the picture that shows some predictions."""
        from tensorboard.plugins.image.metadata import create_summary_metadata

        file = BytesIO()
        picture.save(file, "png")
        content = [str(picture.width).encode(), str(picture.height).encode(), file.getvalue()]
        with self._writer.as_default(step=step):
            tf.summary.write("predictions", tf.constant(content), metadata=create_summary_metadata(None, None))
        self._writer.flush()


def _table(settings: Mapping[str, ChangedSetting]) -> str:
    if not settings:
        return "All settings are the defaults."
    rows = [f"| {key} | {_cell(one.value)} | {_cell(one.default)} |" for key, one in settings.items()]
    return "\n".join(["| setting | value | default |", "|---|---|---|", *rows])


def _cell(value: Any) -> str:
    """Return a value as code in markdown, so that | does not end the cell and * is shown."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "`" + text.replace("`", "'") + "`"


def _plain(value: Any) -> bool | int | float | str:
    """Return a setting's value in a form that the tab HParams accepts."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
