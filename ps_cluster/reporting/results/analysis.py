"""Define what is found out about the predictions of one kind of task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps_cluster.reporting.plot import Plot
from ps_cluster.run.kept_predictions import Predictions

MOST_SHOWN = 20  # classes, labels or outputs in a table of the page; results.json has all
MISTAKES = 24

Json = dict[str, Any]


@dataclass(frozen=True)
class Mistake:
    """A test example on which the network was wrong. `example`: its index; the others are words for the page."""

    example: int
    said: str
    truth: str
    measure: str


class Analysis(ABC):
    """The analysis of predictions. Subclass it for an objective; the objective names the subclass as `results`.

    Attributes:
      template: of its part of the page, in templates/.
      mistakes_title, mistakes_note: what stands above and below the mistakes. columns: the headings of `Mistake`'s words.
      target: of the predictions, [N] or [N, outputs].
    """

    template = ""
    mistakes_title = "The most confident mistakes"
    mistakes_note = "Examples are counted from 0, in the order of the test set."
    columns = ("said", "is", "confidence")

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        """Keep and check the predictions. Raises Malformed for arrays that no judge has written.

        Args:
          target_name: the name of what is predicted, e.g. a column of a table.
        """
        self.predictions = predictions
        self.target_name = target_name
        self.target: np.ndarray = np.empty(0)

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


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share of 1 as text, e.g. "91.2 %"."""
    return "–" if share is None else f"{share:.{digits}%}".replace("%", "\N{NO-BREAK SPACE}%")


def share_of(part: float, whole: float) -> float | None:
    """Return part / whole; None where there is nothing."""
    return float(part / whole) if whole else None
