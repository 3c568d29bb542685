"""Compute the points of a run's curves from its progress rows and scores. Imports no TensorFlow and no matplotlib."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ps_cluster.runs.result_rows import Measure, ProgressRow, ScoreRow, Split


class Point(NamedTuple):
    """A point of a curve. `train_seconds` and `examples` are None if they are unknown."""

    train_seconds: float | None
    examples: int | None
    value: float


def trained_points(rows: Iterable[ProgressRow], measure: Measure) -> list[Point]:
    """Return the points of the curve of a measure, e.g. the loss, on training examples."""
    values = ((row, row.measured(measure)) for row in rows)
    return [Point(row.train_seconds, row.examples, value) for row, value in values if value is not None]


def scored_points(rows: Iterable[ScoreRow], measure: Measure, examples: Split) -> list[Point]:
    """Return the points of the curve of a measure on test examples, or on held-out training examples."""
    values = ((row, row.measured(measure, examples)) for row in rows)
    return [Point(row.train_seconds, row.examples, value) for row, value in values if value is not None]
