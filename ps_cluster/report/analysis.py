"""Define what is found out about the predictions of one kind of task."""

from __future__ import annotations

import base64
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps_cluster.config.objectives import TARGET
from ps_cluster.data.describing import example_rows
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError
from ps_cluster.report.pages import Plot
from ps_cluster.report.sheets import scaled
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.scores import Predictions

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


# Show test examples on a page: pictures, or rows of columns.

MOST_COLUMNS = 10
_SIDE = 96  # pixels of a picture's longer side


@dataclass(frozen=True)
class Examples:
    """Some test examples, as sources of <img>, or else as rows of text below names of columns.

    `lacking`: why there is neither.
    """

    pictures: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more_columns: int = 0
    lacking: str = ""


def dataset_of(run_dir: RunDir) -> PackedDataset | None:
    """Return the packed copy that a run was trained on; None if it is not on this machine any more."""
    try:
        return load_pointed(run_dir.dataset)
    except (UserError, OSError):
        return None


def examples(dataset: PackedDataset | None, analysis: Analysis, ids: Sequence[int]) -> Examples:
    """Return the test examples of these indices."""
    if dataset is None:
        return Examples(lacking="the packed copy of the data set is not on this machine any more")
    chosen = np.asarray(ids, np.int64)
    if not len(chosen):
        return Examples()
    if not _fits(dataset, analysis, chosen):
        return Examples(lacking="the data set's packed copy has changed since")
    image = next((name for name, field in dataset.spec.inputs.items() if field.is_image), None)
    if image is not None:
        return Examples(pictures=tuple(map(_source, dataset.inputs("test")[image][chosen])))
    names, rows = example_rows(dataset, chosen, "test")
    columns = [index for index, name in enumerate(names) if name != TARGET]
    shown = columns[:MOST_COLUMNS]
    return Examples(
        names=tuple(names[index] for index in shown),
        rows=tuple(tuple(row[index] for index in shown) for row in rows),
        more_columns=len(columns) - len(shown),
    )


def _fits(dataset: PackedDataset, analysis: Analysis, ids: np.ndarray) -> bool:
    """Return whether these are the examples that were predicted: as many, and of the same targets."""
    if dataset.test_examples != analysis.predictions.examples:
        return False
    now, then = (
        np.asarray(rows[ids], np.float64).reshape(len(ids), -1) for rows in (dataset.target("test"), analysis.target)
    )
    return now.shape == then.shape and np.allclose(now, then, rtol=1e-5)


def _source(image: np.ndarray) -> str:
    content = io.BytesIO()
    scaled(image, _SIDE).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
