"""Write predictions for people, as a table, or for programs, as JSON or CSV."""

from __future__ import annotations

import csv
import json
import math
from abc import ABC, abstractmethod
from typing import Any, TextIO

import numpy as np
from rich.table import Table
from rich.text import Text

from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.files.values import cell
from ps_cluster.report.terminal import Output, SafeConsole


class Answers(ABC):
    """The form of the predictions of one example.

    Attributes:
      columns: headings of the cells in a CSV.
      headings: those in a table for people.
    """

    columns: list[str]
    headings: list[str]

    @abstractmethod
    def cells(self, prediction: np.ndarray) -> list[Any]:
        """Return the cells of a CSV for a prediction [outputs]."""

    @abstractmethod
    def shown(self, prediction: np.ndarray) -> list[str]:
        """Return the cells of a table for people."""

    @abstractmethod
    def as_json(self, prediction: np.ndarray) -> dict[str, Any]:
        """Return the keys and values of a JSON object, without the example's name."""


class Classes(Answers):
    """The most probable classes or labels, the most probable first."""

    def __init__(self, names: tuple[str, ...], top: int):
        self._names, self._top = names, min(top, len(names))
        places = range(1, self._top + 1)
        self.columns = [f"{what}_{place}" for place in places for what in ("class", "probability")]
        self.headings = ["class", *(f"{place}." for place in places[1:])]

    def cells(self, prediction: np.ndarray) -> list[Any]:
        return [cell for pair in self._best(prediction) for cell in pair]

    def shown(self, prediction: np.ndarray) -> list[str]:
        return [f"{name} {'–' if share is None else f'{share:.1%}'}" for name, share in self._best(prediction)]

    def as_json(self, prediction: np.ndarray) -> dict[str, Any]:
        return {"classes": [{"class": name, "probability": share} for name, share in self._best(prediction)]}

    def _best(self, prediction: np.ndarray) -> list[tuple[str, float | None]]:
        order = np.argsort(-prediction, kind="stable")[: self._top]
        return [(self._names[label], _finite(prediction[label])) for label in order]


class Values(Answers):
    """The values of a regression, in the target's units."""

    def __init__(self, count: int):
        self.columns = ["value"] if count == 1 else [f"value_{place}" for place in range(1, count + 1)]
        self.headings = self.columns

    def cells(self, prediction: np.ndarray) -> list[Any]:
        return [_finite(value) for value in prediction]

    def shown(self, prediction: np.ndarray) -> list[str]:
        return [f"{value:.6g}" for value in prediction]

    def as_json(self, prediction: np.ndarray) -> dict[str, Any]:
        return {"values": self.cells(prediction)}


def answers_of(spec: ExampleSpec, top: int) -> Answers:
    """Return the form of a data set's predictions. `top`: how many classes are told."""
    return Classes(spec.classes, top) if spec.classes else Values(spec.outputs)


class Writer(ABC):
    """Writes predictions to a text stream, one after the other."""

    def __init__(self, stream: TextIO | Output, answers: Answers):
        self._stream: Any = stream
        self._answers = answers

    @abstractmethod
    def add(self, name: str, prediction: np.ndarray) -> None:
        """Write the prediction [outputs] for an example."""

    def end(self) -> None:
        """Write what follows the last one."""


class CsvWriter(Writer):
    """A line for each example, below a line of names."""

    def __init__(self, stream: TextIO | Output, answers: Answers):
        super().__init__(stream, answers)
        self._rows = csv.writer(self._stream, lineterminator="\n")
        self._rows.writerow(map(cell, ["example", *answers.columns]))

    def add(self, name: str, prediction: np.ndarray) -> None:
        self._rows.writerow(map(cell, [name, *self._answers.cells(prediction)]))


class JsonWriter(Writer):
    """A list with an object for each example, each on its line."""

    _before = "[\n"

    def add(self, name: str, prediction: np.ndarray) -> None:
        self._stream.write(self._before + json.dumps({"example": name} | self._answers.as_json(prediction)))
        self._before = ",\n"

    def end(self) -> None:
        self._stream.write("\n]\n" if self._before == ",\n" else "[]\n")


class TableWriter(Writer):
    """A table for people. It is written at the end: only then its widths are known."""

    def __init__(self, stream: TextIO | Output, answers: Answers):
        super().__init__(stream, answers)
        self._table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        self._table.add_column("example", overflow="fold")
        for heading in answers.headings:
            self._table.add_column(heading)

    def add(self, name: str, prediction: np.ndarray) -> None:
        self._table.add_row(*(Text(cell) for cell in (name, *self._answers.shown(prediction))))

    def end(self) -> None:
        output = self._stream if isinstance(self._stream, Output) else Output(self._stream)
        SafeConsole(output, highlight=False).print(self._table)


WRITERS: dict[str, type[Writer]] = {"table": TableWriter, "json": JsonWriter, "csv": CsvWriter}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
