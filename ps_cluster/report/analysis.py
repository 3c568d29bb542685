"""Define the analysis of a network's predictions: its results for each class, label or output, and its mistakes.

The subclasses of `Analysis` are in class_results.py, label_results.py and value_results.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ps_cluster.files.json_files import Json
from ps_cluster.report.calibration import Calibration
from ps_cluster.report.plots import Plot
from ps_cluster.runs.predictions import Predictions

MOST_SHOWN = 20  # the most rows of a table on the page; results.json has all rows
MISTAKES = 24  # the most mistakes that the page shows


@dataclass(frozen=True)
class Mistake:
    """A test example on which the network was wrong, as the page of results shows it.

    Attributes:
      example: the index of the example in the test set.
      predicted, truth: the prediction and the target, in words.
      measure: the confidence of the prediction or, for numbers, its absolute error, as text.
    """

    example: int
    predicted: str
    truth: str
    measure: str


@dataclass(frozen=True)
class MatrixCell:
    """A cell of the confusion matrix: the number of examples with a certain true class and a certain predicted class.

    `share`: `count` divided by the number of examples of the true class. `right`: whether the two classes are the same.
    """

    count: int
    share: float
    right: bool = False


class AnalysisRow(Protocol):
    """The results of one class, label or output of the network. They are one row of the table on the page."""

    @property
    def name(self) -> str: ...

    @property
    def merit(self) -> tuple[float, ...] | None:
        """A key that sorts the worst rows first; None for a row that never counts as one of the worst."""

    @property
    def cells(self) -> list[str]:
        """The texts of the cells of this row, without the first cell, which contains `name`."""


class Analysis(ABC):
    """The analysis of the predictions for all test examples. `Objective.results` returns the subclass for an objective.

    Attributes:
      heading, table_columns: the title and the column headings of the table on the page.
      worst: a description of the rows that the page shows if the table has more than MOST_SHOWN rows.
      mistakes_title, mistakes_note: the texts above and below the mistakes.
      columns: the headings of the columns `predicted`, `truth` and `measure` of the mistakes.
      target: the targets of the predicted examples, [N] or [N, outputs].
    """

    heading = worst = ""
    table_columns: tuple[str, ...] = ()
    mistakes_title = "The most confident mistakes"
    mistakes_note = "Examples are counted from 0, in the order of the test set."
    columns = ("predicted", "true", "confidence")

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        """Create the analysis of `predictions`. Raises Malformed if their arrays do not fit the objective.

        Args:
          target_name: the name of the target. In a table of data, it is the name of a column.
        """
        self.predictions = predictions
        self.target_name = target_name
        self.target: np.ndarray = np.empty(0)
        self.known: np.ndarray = np.empty(0, bool)
        """Which predictions are finite, [N] or [N, outputs]. Predictions that are not finite count as wrong."""

    @property
    def without_prediction(self) -> int:
        """The number of examples for which an output of the network was not finite."""
        return int(np.count_nonzero(~self.known.reshape(len(self.known), -1).all(axis=1)))

    @property
    @abstractmethod
    def rows(self) -> Sequence[AnalysisRow]:
        """A row for each class, label or output."""

    @property
    def matrix(self) -> Sequence[Sequence[MatrixCell]]:
        """The rows of the confusion matrix; empty if there is none."""
        return ()

    @property
    def calibration(self) -> Calibration | None:
        """The calibration: how well confidence matches accuracy. None for predictions without confidence."""
        return None

    @cached_property
    def shown(self) -> list[int]:
        """The indices of the rows that the page shows: all, or the worst ones if there are more than MOST_SHOWN."""
        if len(self.rows) <= MOST_SHOWN:
            return list(range(len(self.rows)))
        merits = ((row.merit, index) for index, row in enumerate(self.rows))
        return [index for _, index in sorted(one for one in merits if one[0] is not None)[:MOST_SHOWN]]

    @property
    def table_rows(self) -> list[list[str]]:
        """The rows that the page shows, as text, each with its name first."""
        return [[row.name, *row.cells] for row in map(self.rows.__getitem__, self.shown)]

    @abstractmethod
    def table_note(self) -> str:
        """Return a text that explains the columns of the table."""

    @abstractmethod
    def numbers(self) -> Json:
        """Return all results, for results.json."""

    @abstractmethod
    def highlights(self) -> Iterator[tuple[str, str]]:
        """Yield the name and text of each number to show at the top of the page."""

    @abstractmethod
    def plots(self) -> list[Plot]:
        """Return the plots of this analysis for the page."""

    @abstractmethod
    def mistakes(self) -> list[Mistake]:
        """Return at most MISTAKES mistakes, the worst first."""
