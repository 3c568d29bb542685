"""Find out what a network takes for what: classes, confusions, calibration, mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from matplotlib.figure import Figure

from ps_cluster.files.values import Malformed
from ps_cluster.report.analysis import MISTAKES, MOST_SHOWN, Analysis, Json, Mistake, percent, share_of
from ps_cluster.report.pages import BINS, PALETTE, Calibration, Plot, calibration, grid, legend_outside, plot_style
from ps_cluster.runs.scores import Predictions

MOST_IN_MATRIX = 100  # classes up to which results.json has the whole matrix
MOST_CONFUSIONS = 1000  # in results.json
_CONFUSIONS = 10  # on the page
NOTHING = -1  # "predicted" where an output is not finite


@dataclass(frozen=True)
class ClassRow:
    """The test examples of one class. `predicted`: how many examples were taken for it; None: there is no such share."""

    name: str
    examples: int
    right: int
    predicted: int
    accuracy: float | None
    precision: float | None


@dataclass(frozen=True)
class Confusion:
    """Examples of one class that were taken for another. `share`: of the examples of the class."""

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

    template = "classes.html"
    mistakes_note = f"Beside the right class is the probability that it was given. {Analysis.mistakes_note}"

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        super().__init__(predictions, target_name)
        self.names = predictions.classes
        self.target = _within(predictions, "target", "i", 0, len(self.names) - 1)
        self._predicted = _within(predictions, "predicted", "i", NOTHING, len(self.names) - 1)
        self._confidence = _within(predictions, "confidence", "f", 0, 1)
        self._of_target = _within(predictions, "of_target", "f", 0, 1)
        self._right = self._predicted == self.target
        self._known = self._predicted != NOTHING

    @property
    def accuracy(self) -> float:
        return float(self._right.mean())

    @property
    def without_prediction(self) -> int:
        """The number of examples for which an output was not finite; they count as wrong."""
        return int(np.count_nonzero(~self._known))

    @cached_property
    def rows(self) -> list[ClassRow]:
        """All classes, by label."""
        labels = (self.target, self.target[self._right], self._predicted[self._known])
        counts = zip(self.names, *(np.bincount(one, minlength=len(self.names)).tolist() for one in labels))
        return [
            ClassRow(name, examples, right, said, share_of(right, examples), share_of(right, said))
            for name, examples, right, said in counts
        ]

    @cached_property
    def shown(self) -> list[int]:
        """The labels that the page shows: all, or of more than MOST_SHOWN those with the lowest accuracy, worst first."""
        if len(self.names) <= MOST_SHOWN:
            return list(range(len(self.names)))
        tested = [
            (row.accuracy, -row.examples, label) for label, row in enumerate(self.rows) if row.accuracy is not None
        ]
        return [label for *_, label in sorted(tested)[:MOST_SHOWN]]

    @property
    def shown_rows(self) -> list[ClassRow]:
        return [self.rows[label] for label in self.shown]

    @cached_property
    def balanced_accuracy(self) -> float | None:
        """The mean of the accuracies of the classes that have test examples: each counts the same."""
        known = [row.accuracy for row in self.rows if row.accuracy is not None]
        return share_of(sum(known), len(known))

    @cached_property
    def matrix(self) -> list[list[Cell]]:
        """A row for each class shown, a cell for each that they were taken for, and a last one for all others."""
        rows = []
        for label, counts in zip(self.shown, self._counts(self.shown)):
            examples = max(1, self.rows[label].examples)
            cells = [Cell(int(n), n / examples, label == said) for n, said in zip(counts, self.shown)]
            others = self.rows[label].examples - int(counts.sum())
            rows.append([*cells, Cell(others, others / examples)])
        return rows

    @property
    def has_others(self) -> bool:
        """True if some example was taken for a class that is not shown, or for none."""
        return any(row[-1].count for row in self.matrix)

    def _counts(self, labels: Sequence[int]) -> np.ndarray:
        """Return how many examples of each label were taken for each: int64 [labels, labels]."""
        place = np.full(len(self.names) + 1, -1)  # the last one is that of NOTHING
        place[list(labels)] = np.arange(len(labels))
        rows, columns = place[self.target], place[self._predicted]
        inside = (rows >= 0) & (columns >= 0)
        flat = np.bincount(rows[inside] * len(labels) + columns[inside], minlength=len(labels) ** 2)
        return flat.reshape(len(labels), len(labels))

    @cached_property
    def all_confusions(self) -> list[Confusion]:
        """The pairs that were confused, the most frequent first, at most MOST_CONFUSIONS."""
        wrong = self._known & ~self._right
        pairs, counts = np.unique(
            self.target[wrong].astype(np.int64) * len(self.names) + self._predicted[wrong], return_counts=True
        )
        most = np.argsort(-counts, kind="stable")[:MOST_CONFUSIONS]
        found = ((*divmod(int(pairs[index]), len(self.names)), int(counts[index])) for index in most)
        return [
            Confusion(self.names[target], self.names[said], count, count / self.rows[target].examples)
            for target, said, count in found
        ]

    @property
    def confusions(self) -> list[Confusion]:
        return self.all_confusions[:_CONFUSIONS]

    @cached_property
    def calibration(self) -> Calibration:
        return calibration(self._confidence[self._known], self._right[self._known])

    def numbers(self) -> Json:
        whole = range(len(self.names)) if len(self.names) <= MOST_IN_MATRIX else None
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "without_prediction": self.without_prediction,
            "classes": [asdict(row) for row in self.rows],
            "confusion_matrix": None if whole is None else self._counts(whole).tolist(),
            "confusions": [asdict(one) for one in self.all_confusions],
            "calibration": as_json(self.calibration),
        }

    def highlights(self) -> Iterator[tuple[str, str]]:
        yield "calibration error", percent(self.calibration.expected_error)

    def plots(self) -> list[Plot]:
        return reliability(self.calibration, self.predictions.unit)

    def mistakes(self) -> list[Mistake]:
        """Return the wrong predictions of the largest confidence."""
        wrong = np.flatnonzero(self._known & ~self._right)
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


# Draw calibration: the share that is right, by the confidence.

NARROW_IN, HEIGHT_IN = 4.6, 2.6  # of a figure that has another one beside it


def as_json(found: Calibration) -> Json:
    """Return the bins and the errors that are computed from them, for results.json."""
    about = {"expected_calibration_error": found.expected_error, "overconfidence": found.overconfidence}
    return about | {"bins": BINS} | asdict(found)


def reliability(found: Calibration, unit: str) -> list[Plot]:
    """Return two plots: how often predictions were right, and how many there are, both by confidence."""
    if not found.total:
        return []
    right = (
        f"The share of predictions that are right, by how sure the network was, in {BINS} bins of equal width. "
        "On the diagonal it is right as often as it says; below, it is too sure."
    )
    return [
        Plot("calibration", "Right, by confidence", right, _bars(found)),
        Plot("confidence", "How sure it was", f"How many test {unit} have which confidence.", _counts(found)),
    ]


def _bars(found: Calibration) -> Figure:
    with plot_style():
        figure, [[axes]] = grid(1, 1, HEIGHT_IN, width_in=NARROW_IN)
        heights = [100 * right if right is not None else 0.0 for right in found.right]
        axes.bar(_middles(), heights, width=100 / BINS * 0.9, color=PALETTE[0], label="right")
        axes.plot([0, 100], [0, 100], color=PALETTE[1], linestyle="--", linewidth=1.2, label="perfectly calibrated")
        axes.set(xlabel="confidence [%]", ylabel="right [%]", xlim=(0, 100), ylim=(0, 100))
        legend_outside(figure, [axes])
    return figure


def _counts(found: Calibration) -> Figure:
    with plot_style():
        figure, [[axes]] = grid(1, 1, HEIGHT_IN, width_in=NARROW_IN)
        share = 100 * np.array(found.counts) / found.total
        axes.bar(_middles(), share, width=100 / BINS * 0.9, color=PALETTE[5])
        axes.set(xlabel="confidence [%]", ylabel="predictions [%]", xlim=(0, 100))
    return figure


def _middles() -> np.ndarray:
    return 100 * (np.arange(BINS) + 0.5) / BINS
