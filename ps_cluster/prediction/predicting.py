"""Predict examples with the best model of a run, a batch at a time, and write what it says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from ps_cluster.errors import UserError
from ps_cluster.files.writing import create_beside
from ps_cluster.prediction.finished_run import FinishedRun
from ps_cluster.prediction.given import batches_of
from ps_cluster.prediction.predictor import Predictor
from ps_cluster.prediction.writers import Writer, answers_of
from ps_cluster.reporting.terminal import Output


def predict(
    run: FinishedRun,
    paths: Sequence[Path],
    *,
    writer: type[Writer],
    top: int,
    output: Path | None,
    skip_bad: bool,
    notify: Callable[[str], None],
) -> int:
    """Write the predictions for all examples in files and folders, and return how many there are.

    Args:
      writer: the form in which they are written.
      top: how many classes are told of each example.
      output: the file to write, which appears whole; None: standard output.
      skip_bad: go on without pictures that can't be read.
      notify: called with a line for a person, each time.

    Raises:
      UserError: an example can't be read, or there is none.
    """
    batches = batches_of(paths, run, skip_bad=skip_bad, notify=notify)
    first = next(batches, None)  # mistakes are told before TensorFlow is imported
    if first is None:
        raise UserError(f"'{paths[0]}': there is no example to predict: give pictures, arrays or tables that have some")
    predictor, count = Predictor(run), 0
    with _opened(output) as stream:
        written = writer(stream, answers_of(run.spec, top))
        for names, inputs in chain([first], batches):
            for name, prediction in zip(names, predictor(inputs), strict=True):
                written.add(name, prediction)
            count += len(names)
        written.end()
    return count


@contextmanager
def _opened(output: Path | None) -> Iterator[Any]:
    if output is None:
        stream = Output(sys.stdout)
        yield stream
        stream.flush()
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        with create_beside(output, encoding="utf-8") as file:
            yield file
