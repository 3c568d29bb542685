"""Write predictions as a table for people, or as JSON or CSV for programs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from typing import IO, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from rich.text import Text

from ps_cluster.files.values import csv_cell, finite
from ps_cluster.report.terminal import FOLD, ColumnOptions, Output, SafeConsole, plain_table

Prediction = TypeVar("Prediction")
GivenPrediction = TypeVar("GivenPrediction", contravariant=True)
Cell: TypeAlias = str | float | None
"""A value in a CSV file. None is written as an empty value."""
Rows: TypeAlias = Iterable[tuple[str, Prediction]]
"""The name and the prediction of each example."""
Stream: TypeAlias = IO[str] | Output
"""A stream to which predictions are written: an open file, or standard output."""


class ClassFormatter:
    """Converts the prediction for an example to its most probable classes or labels, the most probable first."""

    def __init__(self, names: tuple[str, ...], top: int):
        self._names, self._top = names, min(top, len(names))
        places = range(1, self._top + 1)
        self.columns = [f"{what}_{place}" for place in places for what in ("class", "probability")]
        self.headings = ["class", *(f"{place}." for place in places[1:])]

    def cells(self, prediction: np.ndarray) -> list[Cell]:
        return [one for pair in self._best(prediction) for one in pair]

    def shown(self, prediction: np.ndarray) -> list[str]:
        return [f"{name} {'–' if share is None else f'{share:.1%}'}" for name, share in self._best(prediction)]

    def as_json(self, prediction: np.ndarray) -> dict[str, Any]:
        return {"classes": [{"class": name, "probability": share} for name, share in self._best(prediction)]}

    def _best(self, prediction: np.ndarray) -> list[tuple[str, float | None]]:
        order = np.argsort(-prediction, kind="stable")[: self._top]
        return [(self._names[label], finite(prediction[label])) for label in order]


class ValueFormatter:
    """Converts the prediction for an example to the values of a regression, in the target's units."""

    def __init__(self, count: int):
        self.columns = ["value"] if count == 1 else [f"value_{place}" for place in range(1, count + 1)]
        self.headings = self.columns

    def cells(self, prediction: np.ndarray) -> list[Cell]:
        return [finite(value) for value in prediction]

    def shown(self, prediction: np.ndarray) -> list[str]:
        return [f"{value:.6g}" for value in prediction]

    def as_json(self, prediction: np.ndarray) -> dict[str, Any]:
        return {"values": self.cells(prediction)}


class PredictionFormatter(Protocol[GivenPrediction]):
    """Converts a prediction to the values to write.

    A prediction is e.g. an array of probabilities, float [outputs], or the bytes that continue a text.
    """

    columns: list[str]  # the headings of a CSV file
    headings: list[str]  # the headings of a table for people

    def cells(self, prediction: GivenPrediction, /) -> Sequence[Cell]:
        """Return the cells of a CSV file."""

    def shown(self, prediction: GivenPrediction, /) -> list[str]:
        """Return the cells of a table for people."""

    def as_json(self, prediction: GivenPrediction, /) -> dict[str, Any]:
        """Return the keys and values of a JSON object, without the example's name."""


class WritePredictions(Protocol):
    """A function that writes predictions in one format."""

    def __call__(self, stream: Stream, rows: Rows[Prediction], formatter: PredictionFormatter[Prediction], /) -> None:
        """Write the name and the prediction of each example to a stream."""


def _write_csv(stream: Stream, rows: Rows[Prediction], formatter: PredictionFormatter[Prediction]) -> None:
    """Write a line of headings, then a line for each example."""
    lines = csv.writer(stream, lineterminator="\n")
    lines.writerow(map(csv_cell, ["example", *formatter.columns]))
    for name, prediction in rows:
        lines.writerow(map(csv_cell, [name, *formatter.cells(prediction)]))


def _write_json(stream: Stream, rows: Rows[Prediction], formatter: PredictionFormatter[Prediction]) -> None:
    """Write a list with an object for each example, one per line."""
    before = "[\n"
    for name, prediction in rows:
        stream.write(before + json.dumps({"example": name} | formatter.as_json(prediction)))
        before = ",\n"
    stream.write("\n]\n")


def _write_table(stream: Stream, rows: Rows[Prediction], formatter: PredictionFormatter[Prediction]) -> None:
    """Write a table for people. It is written at the end, when the widths of its columns are known."""
    table = plain_table(example=FOLD, **{heading: ColumnOptions() for heading in formatter.headings})
    for name, prediction in rows:
        table.add_row(*map(Text, (name, *formatter.shown(prediction))))
    output = stream if isinstance(stream, Output) else Output(stream)
    SafeConsole(output, highlight=False).print(table)


WRITERS: dict[str, WritePredictions] = {"table": _write_table, "json": _write_json, "csv": _write_csv}
