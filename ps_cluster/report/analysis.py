"""The analysis of what a network got wrong. class_results.py, label_results.py and value_results.py have its kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ps_cluster.files.json_files import Json
from ps_cluster.report.calibration import Calibration
from ps_cluster.report.plots import Plot
from ps_cluster.runs.predictions import Predictions

MOST_SHOWN = 20  # classes, labels or outputs in a table of the page; results.json has all
MISTAKES = 24


@dataclass(frozen=True)
class Mistake:
    """A test example on which the network was wrong. `example`: its index; the others are words for the page."""

    example: int
    predicted: str
    truth: str
    measure: str


class Analysis(ABC):
    """The analysis of predictions. Subclass it for an objective; the objective names the subclass as `results`.

    Attributes:
      heading, worst: of the table on the page: its title, and what rows are shown where there are too many.
      table_columns: its headings.
      mistakes_title, mistakes_note: what stands above and below the mistakes. columns: the headings of `Mistake`'s words.
      target: of the predictions, [N] or [N, outputs].
    """

    heading = worst = ""
    table_columns: tuple[str, ...] = ()
    matrix: Sequence[Sequence[Any]] = ()
    calibration: Calibration | None = None
    mistakes_title = "The most confident mistakes"
    mistakes_note = "Examples are counted from 0, in the order of the test set."
    columns = ("predicted", "true", "confidence")

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        """Keep and check the predictions. Raises Malformed for arrays that no judge has written.

        Args:
          target_name: the name of what is predicted, e.g. a column of a table.
        """
        self.predictions = predictions
        self.target_name = target_name
        self.target: np.ndarray = np.empty(0)
        self.known: np.ndarray = np.empty(0, bool)
        """Which predictions are finite, [N] or [N, outputs]; others count as wrong."""

    @property
    def without_prediction(self) -> int:
        """The number of examples for which an output was not finite."""
        return int(np.count_nonzero(~self.known.reshape(len(self.known), -1).all(axis=1)))

    @property
    @abstractmethod
    def rows(self) -> Sequence[Any]:
        """A row for each class, label or output."""

    @abstractmethod
    def merit(self, row: Any) -> tuple[float, ...] | None:
        """Return what rows are sorted by, the worst first; None for a row that is left out of the worst."""

    @cached_property
    def shown(self) -> list[int]:
        """The indices of the rows that the page shows: all, or of more than MOST_SHOWN the worst."""
        if len(self.rows) <= MOST_SHOWN:
            return list(range(len(self.rows)))
        merits = ((self.merit(row), index) for index, row in enumerate(self.rows))
        return [index for _, index in sorted(one for one in merits if one[0] is not None)[:MOST_SHOWN]]

    @property
    def table_rows(self) -> list[list[str]]:
        """The rows that the page shows, as text, each with its name first."""
        return [[row.name, *self.cells(row)] for row in map(self.rows.__getitem__, self.shown)]

    @abstractmethod
    def cells(self, row: Any) -> list[str]:
        """Return a row of the table as text, without its name."""

    @abstractmethod
    def table_note(self) -> str:
        """Return what the columns of the table are."""

    @abstractmethod
    def numbers(self) -> Json:
        """Return everything that was found, for results.json."""

    @abstractmethod
    def highlights(self) -> Iterator[tuple[str, str]]:
        """Yield name and text of the numbers that stand at the top of the page."""

    @abstractmethod
    def plots(self) -> list[Plot]:
        """Return the plots of its part of the page."""

    @abstractmethod
    def mistakes(self) -> list[Mistake]:
        """Return at most MISTAKES mistakes, the worst first."""
