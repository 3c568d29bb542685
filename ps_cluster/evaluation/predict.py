"""Predict examples with the best model of a run, one batch at a time, and write the predictions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np

from ps_cluster.errors import UserError
from ps_cluster.evaluation.answers import ClassFormatter, PredictionFormatter, Stream, ValueFormatter, WritePredictions
from ps_cluster.evaluation.example_files import batches_of
from ps_cluster.evaluation.predictor import Predictor, TrainedRun
from ps_cluster.files.writing import create_text_beside
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import Output


def predict(
    run: TrainedRun,
    paths: Sequence[Path],
    *,
    writer: WritePredictions,
    top: int,
    output: Path | None,
    skip_bad: bool,
    notify: Notify,
) -> int:
    """Write the predictions for all examples in files and folders. Return the number of examples.

    Args:
      writer: writes the predictions in one of the formats.
      top: the number of classes to write for each example.
      output: the file to write, which appears when it is complete; None to write to standard output.
      skip_bad: skip images that can't be read.
    """
    batches = batches_of(paths, run, skip_bad=skip_bad, notify=notify)
    first = next(batches, None)  # mistakes are reported before TensorFlow is imported
    if first is None:
        raise UserError(
            f"'{paths[0]}': there is no example to predict: give pictures, or arrays or tables with at least one row"
        )
    predictor, count = Predictor(run), 0

    def rows() -> Iterator[tuple[str, np.ndarray]]:
        nonlocal count
        for names, inputs in chain([first], batches):
            yield from zip(names, predictor(inputs), strict=True)
            count += len(names)

    formatter: PredictionFormatter[np.ndarray] = ValueFormatter(run.spec.outputs)
    if run.spec.classes:
        formatter = ClassFormatter(run.spec.classes, top)
    with opened_output(output) as stream:
        writer(stream, rows(), formatter)
    return count


@contextmanager
def opened_output(output: Path | None) -> Iterator[Stream]:
    """Open the file `output`, which appears when it is complete; if it is None, open standard output."""
    if output is None:
        stream = Output(sys.stdout)
        yield stream
        stream.flush()
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        with create_text_beside(output) as file:
            yield file
