"""Find out what a network got wrong: classes and their confusions, numbers and their errors, labels; and how sure it was."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ps_cluster.files.json_files import Json
from ps_cluster.files.values import Malformed, number_text
from ps_cluster.report.calibration import Calibration, percent, reliability, share_of
from ps_cluster.report.plots import PALETTE, Plot, plain_ticks, small_plot
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


MOST_IN_MATRIX = 100  # classes up to which results.json has the whole matrix
MOST_CONFUSIONS = 1000  # in results.json; the page has the first ten
NOTHING = -1  # "predicted" where an output is not finite


@dataclass(frozen=True)
class ClassRow:
    """The test examples of one class. `predicted`: how many examples were predicted to be
    of it. A share is None if it has no examples."""

    name: str
    examples: int
    right: int
    predicted: int
    accuracy: float | None
    precision: float | None


@dataclass(frozen=True)
class Confusion:
    """Examples of one class that were predicted to be of another. `share`: of the examples of the class."""

    target: str
    predicted: str
    count: int
    share: float


@dataclass(frozen=True)
class Cell:
    """A cell of the confusion matrix. `share`: of the examples of its row."""

    count: int
    share: float
    right: bool = False


class ClassResults(Analysis):
    """Predictions of one class for each example."""

    heading, worst = "Classes", "classes with the lowest accuracy"
    table_columns = ("class", "accuracy", "right", "tested", "precision")
    mistakes_note = f"Beside the right class is the probability that it was given. {Analysis.mistakes_note}"

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        super().__init__(predictions, target_name)
        self.names = predictions.classes
        self.target = _within(predictions, "target", "i", 0, len(self.names) - 1)
        self._predicted = _within(predictions, "predicted", "i", NOTHING, len(self.names) - 1)
        self._confidence = _within(predictions, "confidence", "f", 0, 1)
        self._of_target = _within(predictions, "of_target", "f", 0, 1)
        self._right = self._predicted == self.target
        self.known = self._predicted != NOTHING

    @property
    def accuracy(self) -> float:
        return float(self._right.mean())

    @cached_property
    def rows(self) -> list[ClassRow]:
        """All classes, by label."""
        labels = (self.target, self.target[self._right], self._predicted[self.known])
        counts = zip(self.names, *(np.bincount(one, minlength=len(self.names)).tolist() for one in labels))
        return [
            ClassRow(name, examples, right, predicted, share_of(right, examples), share_of(right, predicted))
            for name, examples, right, predicted in counts
        ]

    def merit(self, row: ClassRow) -> tuple[float, ...] | None:
        return None if row.accuracy is None else (row.accuracy, -row.examples)

    def cells(self, row: ClassRow) -> list[str]:
        return [percent(row.accuracy), f"{row.right:,}", f"{row.examples:,}", percent(row.precision)]

    def table_note(self) -> str:
        unit = self.predictions.unit
        return (
            f"Accuracy: the share of the class's {unit} that were predicted to be of it. Precision: the share of the {unit} "
            "predicted to be of the class that are of it. The mean of the accuracies of all classes is "
            f"{percent(self.balanced_accuracy)}."
        )

    @cached_property
    def balanced_accuracy(self) -> float | None:
        """The mean of the accuracies of the classes that have test examples: each counts the same."""
        known = [row.accuracy for row in self.rows if row.accuracy is not None]
        return share_of(sum(known), len(known))

    @cached_property
    def matrix(self) -> list[list[Cell]]:  # type: ignore[override]
        """A row for each class shown, with a cell for each predicted class, and a last cell for all other predictions."""
        rows = []
        for label, counts in zip(self.shown, self._counts(self.shown)):
            examples = max(1, self.rows[label].examples)
            cells = [Cell(int(n), n / examples, label == predicted) for n, predicted in zip(counts, self.shown)]
            others = self.rows[label].examples - int(counts.sum())
            rows.append([*cells, Cell(others, others / examples)])
        return rows

    @property
    def has_others(self) -> bool:
        """True if some example was predicted to be of a class that is not shown, or of none."""
        return any(row[-1].count for row in self.matrix)

    def _counts(self, labels: Sequence[int]) -> np.ndarray:
        """Return the number of examples by true and predicted label: int64 [labels, labels]."""
        place = np.full(len(self.names) + 1, -1)  # the last one is that of NOTHING
        place[list(labels)] = np.arange(len(labels))
        rows, columns = place[self.target], place[self._predicted]
        inside = (rows >= 0) & (columns >= 0)
        flat = np.bincount(rows[inside] * len(labels) + columns[inside], minlength=len(labels) ** 2)
        return flat.reshape(len(labels), len(labels))

    @cached_property
    def confusions(self) -> list[Confusion]:
        """The pairs that were confused, the most frequent first, at most MOST_CONFUSIONS."""
        wrong = self.known & ~self._right
        pairs, counts = np.unique(
            self.target[wrong].astype(np.int64) * len(self.names) + self._predicted[wrong], return_counts=True
        )
        most = np.argsort(-counts, kind="stable")[:MOST_CONFUSIONS]
        found = ((*divmod(int(pairs[index]), len(self.names)), int(counts[index])) for index in most)
        return [
            Confusion(self.names[target], self.names[predicted], count, count / self.rows[target].examples)
            for target, predicted, count in found
        ]

    @cached_property
    def calibration(self) -> Calibration:  # type: ignore[override]
        return Calibration.of(self._confidence[self.known], self._right[self.known])

    def numbers(self) -> Json:
        whole = range(len(self.names)) if len(self.names) <= MOST_IN_MATRIX else None
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "without_prediction": self.without_prediction,
            "classes": [asdict(row) for row in self.rows],
            "confusion_matrix": None if whole is None else self._counts(whole).tolist(),
            "confusions": [asdict(one) for one in self.confusions],
            "calibration": self.calibration.to_json(),
        }

    def highlights(self) -> Iterator[tuple[str, str]]:
        yield "calibration error", percent(self.calibration.expected_error)

    def plots(self) -> list[Plot]:
        return reliability(self.calibration, self.predictions.unit)

    def mistakes(self) -> list[Mistake]:
        """Return the wrong predictions of the largest confidence."""
        wrong = np.flatnonzero(self.known & ~self._right)
        surest = wrong[np.argsort(-self._confidence[wrong], kind="stable")[:MISTAKES]]
        return [
            Mistake(
                int(index),
                self.names[self._predicted[index]],
                f"{self.names[self.target[index]]}, {percent(float(self._of_target[index]))}",
                percent(float(self._confidence[index])),
            )
            for index in surest
        ]


def _within(predictions: Predictions, name: str, kind: str, low: float, high: float) -> np.ndarray:
    """Return an array [N]. Raises Malformed if a value is not in the range."""
    array = predictions.column(name, kind)
    if not ((array >= low) & (array <= high)).all():
        raise Malformed(f"'{name}' has a value that is not from {low:g} to {high:g}")
    return array


# Find out how far predicted numbers are from the true ones.

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

    heading, worst = "Errors", "outputs that are explained least"
    table_columns = (
        "predicted", "mean absolute error", "root mean square", "bias", "R²", "5 % below", "median", "5 % above",
    )  # fmt: skip
    mistakes_title = "The largest errors"
    columns = ("predicted", "true", "absolute error")

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        super().__init__(predictions, target_name)
        self.target = predictions.column("target", "f", axes=2)
        self._predicted = predictions.column("prediction", "f", axes=2)
        if self.target.shape != self._predicted.shape:
            raise Malformed(f"its arrays are {self.target.shape} and {self._predicted.shape}")
        self.known = np.isfinite(self._predicted).all(axis=1) & np.isfinite(self.target).all(axis=1)
        self._errors = np.asarray(self._predicted[self.known], np.float64) - self.target[self.known]

    @cached_property
    def rows(self) -> list[ValueRow]:
        """All outputs, in their order."""
        outputs = self.target.shape[1]
        names = [self.target_name] if outputs == 1 else [f"{self.target_name}[{index}]" for index in range(outputs)]
        return [self._row(index, name) for index, name in enumerate(names)]

    def _row(self, index: int, name: str) -> ValueRow:
        errors, true = self._errors[:, index], np.asarray(self.target[self.known, index], np.float64)
        if not len(errors):
            return ValueRow(name, *[None] * 7)
        square, spread = float(np.mean(errors**2)), float(true.var())
        low, median, high = (float(value) for value in np.quantile(errors, (0.05, 0.5, 0.95)))
        explained = 1 - square / spread if spread else None
        of_errors = float(np.abs(errors).mean()), square**0.5, float(errors.mean())
        return ValueRow(name, *of_errors, explained, low, median, high)

    def merit(self, row: ValueRow) -> tuple[float, ...]:
        return (np.inf if row.explained is None else row.explained,)

    def cells(self, row: ValueRow) -> list[str]:
        errors = [row.mean_absolute, row.root_mean_square, row.bias, row.low, row.median, row.high]
        texts = ["–" if value is None else number_text(value) for value in errors]
        return [*texts[:3], "–" if row.explained is None else f"{row.explained:.3f}", *texts[3:]]

    def table_note(self) -> str:
        return (
            "Errors are predicted less true, in the target's own units. Bias: their mean. R²: the share of the variance of "
            "the true values that the predictions explain; 0 is as good as their mean. The last three columns are quantiles "
            "of the errors."
        )

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
        true, errors = self.target[self.known, index], self._errors[:, index]

        def draw_points(axes: Axes) -> None:
            x, y = true[some], true[some] + errors[some]
            ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
            axes.plot(
                x, y, linestyle="", marker="o", markersize=3, color=PALETTE[0], alpha=0.5, markeredgewidth=0,
                rasterized=True, label="test example",
            )  # fmt: skip
            axes.plot(ends, ends, color=PALETTE[1], linestyle="--", linewidth=1.2, label="right")
            axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
            plain_ticks(axes)

        def draw_errors(axes: Axes) -> None:
            # Errors that are nearly equal and very large have no room for the edges between them.
            least = 1e-9 * np.abs(errors).max()
            around = (errors.min() - least, errors.max() + least) if least > 0 and np.ptp(errors) < least else None
            axes.hist(errors, bins=40, range=around, color=PALETTE[5], edgecolor="white", linewidth=0.4)
            axes.axvline(0, color=PALETTE[1], linestyle="--", linewidth=1.2)
            axes.set(xlabel=f"predicted − true {name}", ylabel="test examples")
            plain_ticks(axes)

        caption = f"A point for each test example; on the line the prediction is right.{told}"
        yield small_plot(f"predicted{number}", f"Predicted against true: {name}", caption, draw_points)
        caption = "How many test examples have which error. Right of 0, too much was predicted."
        yield small_plot(f"residuals{number}", f"Errors: {name}", caption, draw_errors)

    def mistakes(self) -> list[Mistake]:
        """Return the examples with the largest mean absolute error over their outputs."""
        sizes = np.abs(self._errors).mean(axis=1)
        ids = np.flatnonzero(self.known)
        return [
            Mistake(int(ids[at]), _text(self._predicted[ids[at]]), _text(self.target[ids[at]]), number_text(sizes[at]))
            for at in np.argsort(-sizes, kind="stable")[:MISTAKES]
        ]


def _text(values: np.ndarray) -> str:
    more = ", …" if len(values) > _MOST_VALUES else ""
    return ", ".join(number_text(value) for value in values[:_MOST_VALUES]) + more


# Find out which labels a network finds, where an example may have any number of them.


@dataclass(frozen=True)
class LabelRow:
    """One label. `examples`: test examples that have it. `predicted`: test examples for which it is predicted.

    `found` (recall) and `precision` are shares of these; `f1` is their harmonic mean. A share of no examples is None.
    """

    name: str
    examples: int
    predicted: int
    found: float | None
    precision: float | None
    f1: float | None
    accuracy: float


class LabelResults(Analysis):
    """Predictions of each label's probability. A label is predicted if its probability is above 1/2."""

    heading, worst = "Labels", "labels with the lowest F1"
    table_columns = ("label", "F1", "found", "precision", "accuracy", "with it", "predicted")

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        super().__init__(predictions, target_name)
        self.names = predictions.classes
        self.target = predictions.column("target", "u", axes=2)
        self._probability = predictions.column("prediction", "f", axes=2)
        if self.target.shape != self._probability.shape or self.target.shape[1] != len(self.names):
            raise Malformed(
                f"its arrays are {self.target.shape} and {self._probability.shape}, of {len(self.names)} labels"
            )
        self.known = np.isfinite(self._probability)
        if not ((self._probability >= 0) & (self._probability <= 1) | ~self.known).all() or self.target.max() > 1:
            raise Malformed("a probability or a label is not from 0 to 1")
        self._predicted = self.known & (self._probability > 0.5)
        self._right = self.known & (self._predicted == self.target)

    @property
    def accuracy(self) -> float:
        """The share of labels that are right, over all examples and labels."""
        return float(self._right.mean())

    @property
    def all_right(self) -> float:
        """The share of examples whose labels are all right."""
        return float(self._right.all(axis=1).mean())

    @cached_property
    def rows(self) -> list[LabelRow]:
        """All labels, in their order."""
        has = self.target.astype(bool)
        counts = zip(
            self.names, has.sum(0), self._predicted.sum(0), (has & self._predicted).sum(0), self._right.mean(0)
        )
        return [
            LabelRow(
                name, int(examples), int(predicted), share_of(both, examples), share_of(both, predicted),
                share_of(2 * both, examples + predicted), float(accuracy),
            )
            for name, examples, predicted, both, accuracy in counts
        ]  # fmt: skip

    def cells(self, row: LabelRow) -> list[str]:
        shares = map(percent, (row.f1, row.found, row.precision, row.accuracy))
        return [*shares, f"{row.examples:,}", f"{row.predicted:,}"]

    def table_note(self) -> str:
        unit = self.predictions.unit
        return (
            f"A label is predicted if its probability is above 1/2. Found (recall): the share of the {unit} with the label for "
            f"which it is predicted. Precision: the share of the {unit} for which it is predicted that have it. F1: the "
            f"harmonic mean of the two. All labels of {percent(self.all_right)} of the {unit} are right."
        )

    def merit(self, row: LabelRow) -> tuple[float, ...] | None:
        return None if row.f1 is None else (row.f1, -row.examples)

    @cached_property
    def calibration(self) -> Calibration:  # type: ignore[override]
        """The calibration of all decisions: the confidence is that in the predicted presence, or absence, of the label."""
        return Calibration.of(self._confidence[self.known], self._right[self.known])

    @cached_property
    def _confidence(self) -> np.ndarray:
        return np.where(self._predicted, self._probability, 1 - self._probability)

    def numbers(self) -> Json:
        return {
            "accuracy": self.accuracy,
            "all_labels_right": self.all_right,
            "without_prediction": self.without_prediction,
            "labels": [asdict(row) for row in self.rows],
            "calibration": self.calibration.to_json(),
        }

    def highlights(self) -> Iterator[tuple[str, str]]:
        yield "all labels right", percent(self.all_right)
        yield "calibration error", percent(self.calibration.expected_error)

    def plots(self) -> list[Plot]:
        return reliability(self.calibration, "labels")

    def mistakes(self) -> list[Mistake]:
        """Return the wrong decisions of the largest confidence, one for each example."""
        wrong = np.where(self.known & ~self._right, self._confidence, -1.0)
        label = wrong.argmax(axis=1)
        sure = wrong[np.arange(len(wrong)), label]
        surest = np.argsort(-sure, kind="stable")[:MISTAKES]
        return [self._mistake(int(index), int(label[index])) for index in surest if sure[index] >= 0]

    def _mistake(self, example: int, label: int) -> Mistake:
        words = f"{self.names[label]}", f"no {self.names[label]}"
        predicted, truth = words if self._predicted[example, label] else words[::-1]
        return Mistake(example, predicted, truth, percent(float(self._confidence[example, label])))
