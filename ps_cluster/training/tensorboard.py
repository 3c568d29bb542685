"""Write scalars and texts for TensorBoard. TensorFlow is imported only when a writer is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ps_cluster.config import Changed
from ps_cluster.run.run_dir import RunDir

TRAINING = ("loss", "accuracy", "error", "learning_rate", "staleness_mean", "examples_per_second")
EVALUATION = ("test_accuracy", "test_error", "test_loss", "validation_accuracy", "validation_error")

Row = Mapping[str, Any]


class _Writer:
    def __init__(self, folder: Path):
        import tensorflow as tf

        self._tf = tf
        self._writer = tf.summary.create_file_writer(str(folder))

    def _scalars(self, row: Row, names: tuple[str, ...], step: int) -> None:
        with self._writer.as_default(step=step):
            for name in names:
                if row.get(name) is not None:
                    self._tf.summary.scalar(name, row[name])
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

    def write_settings(self, settings: Mapping[str, Changed]) -> None:
        """Write the settings that differ from the defaults, as a table in markdown."""
        with self._writer.as_default(step=0):
            self._tf.summary.text("settings", _table(settings))
        self._writer.flush()

    def write_staleness(self, histogram: Mapping[str, int], step: int) -> None:
        """Write the staleness of all updates of the run: {"0": 3, "1": 80} means 3 updates with 0, 80 with 1."""
        import numpy as np

        if histogram:
            values = np.repeat([int(value) for value in histogram], list(histogram.values()))
            with self._writer.as_default(step=step):
                self._tf.summary.histogram("staleness", values, buckets=min(30, len(histogram)))
            self._writer.flush()


class EvaluationWriter(_Writer):
    """Writes scores to tensorboard/evaluation, over the updates applied."""

    def __init__(self, run_dir: RunDir):
        super().__init__(run_dir.tensorboard / "evaluation")

    def write(self, row: Row) -> None:
        """Write a row of metrics/evaluation.jsonl; None values are left out."""
        self._scalars(row, EVALUATION, row["step"])


def _table(settings: Mapping[str, Changed]) -> str:
    if not settings:
        return "All settings are the defaults."
    rows = [f"| {key} | {_cell(one.value)} | {_cell(one.default)} |" for key, one in settings.items()]
    return "\n".join(["| setting | value | default |", "|---|---|---|", *rows])


def _cell(value: Any) -> str:
    """Return a value as code in markdown, in which a | is no end of a cell and a * is itself."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "`" + text.replace("`", "'") + "`"
