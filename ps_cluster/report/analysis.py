"""Define what is found out about the predictions of one kind of task."""

from __future__ import annotations

import base64
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ps_cluster.config.objectives import TARGET
from ps_cluster.data.describing import example_rows
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError
from ps_cluster.report.pages import PALETTE, Plot, small_plot
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
    columns = ("said", "is", "confidence")

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
    def shown_rows(self) -> list[Any]:
        return [self.rows[index] for index in self.shown]

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


# Measure whether a network is right as often as it is sure.

BINS = 15  # as many as in the paper's tables


@dataclass(frozen=True)
class Calibration:
    """Predictions in bins of equal width by their confidence: bin m holds those in ((m − 1) / M, m / M].

    Attributes:
      counts: predictions in each bin. right: the share of them that are right. confidence: their mean confidence. The
        last two are None for an empty bin.
    """

    counts: tuple[int, ...]
    right: tuple[float | None, ...]
    confidence: tuple[float | None, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def expected_error(self) -> float | None:
        """The expected calibration error: the mean over all predictions of |right − confidence| of their bin.

        Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv:1706.04599, eq. 3. None without predictions.
        """
        if not self.total:
            return None
        gaps = (
            count * abs(right - confidence)
            for count, right, confidence in zip(self.counts, self.right, self.confidence)
            if right is not None and confidence is not None
        )
        return sum(gaps) / self.total

    @property
    def overconfidence(self) -> float | None:
        """Mean confidence less the share that is right: above 0 the network is too sure. None without predictions."""
        if not self.total:
            return None
        sums = [0.0, 0.0]
        for count, right, confidence in zip(self.counts, self.right, self.confidence):
            sums[0] += count * (right or 0.0)
            sums[1] += count * (confidence or 0.0)
        return (sums[1] - sums[0]) / self.total


def calibration(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> Calibration:
    """Return predictions in bins.

    Args:
      confidence: float [N], the probability that each prediction gave to itself, 0..1.
      right: bool [N], whether it is right.
    """
    sure = np.asarray(confidence, np.float64)
    of_bin = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(of_bin, minlength=bins)
    sums = (np.bincount(of_bin, values, bins) for values in (right, sure))
    rights, confidences = (
        tuple(float(total / count) if count else None for total, count in zip(of_bins, counts)) for of_bins in sums
    )
    return Calibration(tuple(map(int, counts)), rights, confidences)


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> float | None:
    """Return `Calibration.expected_error` of predictions; arguments as of `calibration`."""
    return calibration(confidence, right, bins).expected_error


def as_json(found: Calibration) -> Json:
    """Return the bins and the errors that are computed from them, for results.json."""
    about = {"expected_calibration_error": found.expected_error, "overconfidence": found.overconfidence}
    return about | {"bins": BINS} | asdict(found)


def reliability(found: Calibration, unit: str) -> list[Plot]:
    """Return two plots: how often predictions were right, and how many there are, both by confidence."""
    if not found.total:
        return []
    middles = 100 * (np.arange(BINS) + 0.5) / BINS
    right = (
        f"The share of predictions that are right, by how sure the network was, in {BINS} bins of equal width. "
        "On the diagonal it is right as often as it says; below, it is too sure."
    )

    def draw_right(axes: Axes) -> None:
        heights = [100 * share if share is not None else 0.0 for share in found.right]
        axes.bar(middles, heights, width=100 / BINS * 0.9, color=PALETTE[0], label="right")
        axes.plot([0, 100], [0, 100], color=PALETTE[1], linestyle="--", linewidth=1.2, label="perfectly calibrated")
        axes.set(xlabel="confidence [%]", ylabel="right [%]", xlim=(0, 100), ylim=(0, 100))

    def draw_counts(axes: Axes) -> None:
        share = 100 * np.array(found.counts) / found.total
        axes.bar(middles, share, width=100 / BINS * 0.9, color=PALETTE[5])
        axes.set(xlabel="confidence [%]", ylabel="predictions [%]", xlim=(0, 100))

    return [
        small_plot("calibration", "Right, by confidence", right, draw_right),
        small_plot("confidence", "How sure it was", f"How many test {unit} have which confidence.", draw_counts),
    ]
