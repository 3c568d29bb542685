"""Find out how far predicted numbers are from the true ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from matplotlib.figure import Figure

from ps_cluster.files.values import Malformed, number_text
from ps_cluster.report.analysis import MISTAKES, MOST_SHOWN, Analysis, Json, Mistake, percent, share_of
from ps_cluster.report.class_results import HEIGHT_IN, NARROW_IN, as_json, reliability
from ps_cluster.report.pages import PALETTE, Calibration, Plot, calibration, grid, legend_outside, plot_style
from ps_cluster.runs.scores import Predictions

_MOST_DRAWN = 3  # outputs with plots of their own
_MOST_POINTS = 2000
_MOST_VALUES = 4  # of a target that a mistake shows


@dataclass(frozen=True)
class ValueRow:
    """One number that is predicted. Errors are predicted less true, in its own units; None where nothing is finite.

    Attributes:
      mean_absolute, root_mean_square: of the errors. bias: their mean. low, median, high: their 5 %, 50 % and 95 %
        quantiles.
      explained: R², the share of the variance that the predictions explain; None where the true values are all equal.
    """

    name: str
    mean_absolute: float | None
    root_mean_square: float | None
    bias: float | None
    explained: float | None
    low: float | None
    median: float | None
    high: float | None


class ValueResults(Analysis):
    """Predictions of one or several numbers for each example, in the target's own units."""

    template = "values.html"
    mistakes_title = "The largest errors"
    columns = ("predicted", "true", "absolute error")

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        super().__init__(predictions, target_name)
        self.target = predictions.column("target", "f", axes=2)
        self._predicted = predictions.column("prediction", "f", axes=2)
        if self.target.shape != self._predicted.shape:
            raise Malformed(f"its arrays are {self.target.shape} and {self._predicted.shape}")
        self._known = np.isfinite(self._predicted).all(axis=1) & np.isfinite(self.target).all(axis=1)
        self._errors = np.asarray(self._predicted[self._known], np.float64) - self.target[self._known]

    @property
    def without_prediction(self) -> int:
        return int(np.count_nonzero(~self._known))

    @cached_property
    def rows(self) -> list[ValueRow]:
        """All outputs, in their order."""
        outputs = self.target.shape[1]
        names = [self.target_name] if outputs == 1 else [f"{self.target_name}[{index}]" for index in range(outputs)]
        return [self._row(index, name) for index, name in enumerate(names)]

    def _row(self, index: int, name: str) -> ValueRow:
        errors, true = self._errors[:, index], np.asarray(self.target[self._known, index], np.float64)
        if not len(errors):
            return ValueRow(name, *[None] * 7)
        square, spread = float(np.mean(errors**2)), float(true.var())
        low, median, high = (float(value) for value in np.quantile(errors, (0.05, 0.5, 0.95)))
        explained = 1 - square / spread if spread else None
        of_errors = float(np.abs(errors).mean()), square**0.5, float(errors.mean())
        return ValueRow(name, *of_errors, explained, low, median, high)

    @cached_property
    def shown(self) -> list[int]:
        """The outputs that the page shows: all, or of more than MOST_SHOWN the least explained, worst first."""
        outputs = range(len(self.rows))
        if len(self.rows) <= MOST_SHOWN:
            return list(outputs)
        worst = sorted(outputs, key=lambda index: np.inf if (found := self.rows[index].explained) is None else found)
        return worst[:MOST_SHOWN]

    @staticmethod
    def text(value: float | None) -> str:
        """Return a number for the page."""
        return "–" if value is None else number_text(value)

    @property
    def shown_rows(self) -> list[ValueRow]:
        return [self.rows[index] for index in self.shown]

    def numbers(self) -> Json:
        return {"without_prediction": self.without_prediction, "outputs": [asdict(row) for row in self.rows]}

    def highlights(self) -> Iterator[tuple[str, str]]:
        if len(self.rows) == 1 and (explained := self.rows[0].explained) is not None:
            yield "R²", f"{explained:.3f}"

    def plots(self) -> list[Plot]:
        if not len(self._errors):
            return []
        return [plot for index in self.shown[:_MOST_DRAWN] for plot in self._plots(index)]

    def _plots(self, index: int) -> Iterator[Plot]:
        name, number = self.rows[index].name, f"-{index}" if len(self.rows) > 1 else ""
        some = np.unique(np.linspace(0, len(self._errors) - 1, _MOST_POINTS).astype(int))
        told = f" {_MOST_POINTS:,} of {len(self._errors):,}, evenly spaced." if len(some) < len(self._errors) else ""
        true, errors = self.target[self._known, index], self._errors[:, index]
        caption = f"A point for each test example; on the line the prediction is right.{told}"
        points = _points(true[some], true[some] + errors[some], name)
        yield Plot(f"predicted{number}", f"Predicted against true: {name}", caption, points)
        caption = "How many test examples have which error. Right of 0, too much was predicted."
        yield Plot(f"residuals{number}", f"Errors: {name}", caption, _histogram(errors, name))

    def mistakes(self) -> list[Mistake]:
        """Return the examples with the largest mean absolute error over their outputs."""
        sizes = np.abs(self._errors).mean(axis=1)
        ids = np.flatnonzero(self._known)
        return [
            Mistake(int(ids[at]), _text(self._predicted[ids[at]]), _text(self.target[ids[at]]), number_text(sizes[at]))
            for at in np.argsort(-sizes, kind="stable")[:MISTAKES]
        ]


def _points(true: np.ndarray, predicted: np.ndarray, name: str) -> Figure:
    with plot_style():
        figure, [[axes]] = grid(1, 1, HEIGHT_IN, width_in=NARROW_IN)
        ends = [float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))]
        axes.plot(
            true, predicted, linestyle="", marker="o", markersize=3, color=PALETTE[0], alpha=0.5, markeredgewidth=0,
            rasterized=True, label="test example",
        )  # fmt: skip
        axes.plot(ends, ends, color=PALETTE[1], linestyle="--", linewidth=1.2, label="right")
        axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
        axes.locator_params("x", nbins=5)  # large numbers would overlap
        legend_outside(figure, [axes])
    return figure


def _histogram(errors: np.ndarray, name: str) -> Figure:
    with plot_style():
        figure, [[axes]] = grid(1, 1, HEIGHT_IN, width_in=NARROW_IN)
        # Errors that are nearly equal and very large have no room for the edges between them.
        least = 1e-9 * np.abs(errors).max()
        around = (errors.min() - least, errors.max() + least) if least > 0 and np.ptp(errors) < least else None
        axes.hist(errors, bins=40, range=around, color=PALETTE[5], edgecolor="white", linewidth=0.4)
        axes.axvline(0, color=PALETTE[1], linestyle="--", linewidth=1.2)
        axes.set(xlabel=f"predicted − true {name}", ylabel="test examples")
        axes.locator_params("x", nbins=5)
    return figure


def _text(values: np.ndarray) -> str:
    more = ", …" if len(values) > _MOST_VALUES else ""
    return ", ".join(number_text(value) for value in values[:_MOST_VALUES]) + more


# Find out which labels a network finds, where an example may have any number of them.


@dataclass(frozen=True)
class LabelRow:
    """One label. `examples`: test examples that have it. `predicted`: those that the network says have it.

    `found` (recall) and `precision` are shares of these; `f1` is their harmonic mean. None: there is no such share.
    """

    name: str
    examples: int
    predicted: int
    found: float | None
    precision: float | None
    f1: float | None
    accuracy: float


class LabelResults(Analysis):
    """Predictions of each label's probability. Said is what has more than 1/2."""

    template = "labels.html"

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        super().__init__(predictions, target_name)
        self.names = predictions.classes
        self.target = predictions.column("target", "u", axes=2)
        self._probability = predictions.column("prediction", "f", axes=2)
        if self.target.shape != self._probability.shape or self.target.shape[1] != len(self.names):
            raise Malformed(
                f"its arrays are {self.target.shape} and {self._probability.shape}, of {len(self.names)} labels"
            )
        self._known = np.isfinite(self._probability)
        if not ((self._probability >= 0) & (self._probability <= 1) | ~self._known).all() or self.target.max() > 1:
            raise Malformed("a probability or a label is not from 0 to 1")
        self._said = self._known & (self._probability > 0.5)
        self._right = self._known & (self._said == self.target)

    @property
    def accuracy(self) -> float:
        """The share of labels that are right, over all examples and labels."""
        return float(self._right.mean())

    @property
    def all_right(self) -> float:
        """The share of examples of which every label is right."""
        return float(self._right.all(axis=1).mean())

    @property
    def without_prediction(self) -> int:
        return int(np.count_nonzero(~self._known.all(axis=1)))

    @cached_property
    def rows(self) -> list[LabelRow]:
        """All labels, in their order."""
        has = self.target.astype(bool)
        counts = zip(self.names, has.sum(0), self._said.sum(0), (has & self._said).sum(0), self._right.mean(0))
        return [
            LabelRow(
                name, int(examples), int(said), share_of(both, examples), share_of(both, said),
                share_of(2 * both, examples + said), float(accuracy),
            )
            for name, examples, said, both, accuracy in counts
        ]  # fmt: skip

    @property
    def shown_rows(self) -> list[LabelRow]:
        """All rows, or of more than MOST_SHOWN those with the lowest F1, worst first."""
        if len(self.rows) <= MOST_SHOWN:
            return self.rows
        known = [row for row in self.rows if row.f1 is not None]
        return sorted(known, key=lambda row: (row.f1 or 0.0, -row.examples))[:MOST_SHOWN]

    @cached_property
    def calibration(self) -> Calibration:
        """Of all decisions: the confidence is that in what was said, the label's presence or its absence."""
        return calibration(self._confidence[self._known], self._right[self._known])

    @cached_property
    def _confidence(self) -> np.ndarray:
        return np.where(self._said, self._probability, 1 - self._probability)

    def numbers(self) -> Json:
        return {
            "accuracy": self.accuracy,
            "all_labels_right": self.all_right,
            "without_prediction": self.without_prediction,
            "labels": [asdict(row) for row in self.rows],
            "calibration": as_json(self.calibration),
        }

    def highlights(self) -> Iterator[tuple[str, str]]:
        yield "all labels right", percent(self.all_right)
        yield "calibration error", percent(self.calibration.expected_error)

    def plots(self) -> list[Plot]:
        return reliability(self.calibration, "labels")

    def mistakes(self) -> list[Mistake]:
        """Return the wrong decisions of the largest confidence, one for each example."""
        wrong = np.where(self._known & ~self._right, self._confidence, -1.0)
        label = wrong.argmax(axis=1)
        sure = wrong[np.arange(len(wrong)), label]
        surest = np.argsort(-sure, kind="stable")[:MISTAKES]
        return [self._mistake(int(index), int(label[index])) for index in surest if sure[index] >= 0]

    def _mistake(self, example: int, label: int) -> Mistake:
        words = f"{self.names[label]}", f"no {self.names[label]}"
        said, truth = words if self._said[example, label] else words[::-1]
        return Mistake(example, said, truth, percent(float(self._confidence[example, label])))
