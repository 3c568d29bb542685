"""Find out which classes a network recognises, and which it confuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from ps_cluster.files.json_files import Json
from ps_cluster.files.values import Malformed
from ps_cluster.report.analysis import MISTAKES, Analysis, MatrixCell, Mistake
from ps_cluster.report.calibration import Calibration, percent, reliability, share_of
from ps_cluster.report.plots import Plot
from ps_cluster.runs.predictions import Predictions

MOST_IN_MATRIX = 100  # the most classes for which results.json has the whole matrix
MOST_CONFUSIONS = 1000  # the most confusions in results.json; the page shows the first ten
NOTHING = -1  # the predicted class of an example for which an output is not finite


@dataclass(frozen=True)
class ClassRow:
    """The results of one class. A share is None if there are no examples to compute it from.

    Attributes:
      examples: the number of test examples of the class.
      right: the number of these examples that were predicted as the class.
      predicted: the number of all test examples that were predicted as the class.
      accuracy: the share right / examples.
      precision: the share right / predicted.
    """

    name: str
    examples: int
    right: int
    predicted: int
    accuracy: float | None
    precision: float | None

    @property
    def merit(self) -> tuple[float, ...] | None:
        return None if self.accuracy is None else (self.accuracy, -self.examples)

    @property
    def cells(self) -> list[str]:
        return [percent(self.accuracy), f"{self.right:,}", f"{self.examples:,}", percent(self.precision)]


@dataclass(frozen=True)
class Confusion:
    """The number of examples of class `target` that were wrongly predicted as class `predicted`.

    `share`: `count` divided by the number of all examples of class `target`.
    """

    target: str
    predicted: str
    count: int
    share: float


class ClassResults(Analysis):
    """The analysis of a classification, which predicts one class for each example."""

    heading, worst = "Classes", "classes with the lowest accuracy"
    table_columns = ("class", "accuracy", "right", "tested", "precision")
    mistakes_note = (
        f"The number after the true class is the probability that the network gave it. {Analysis.mistakes_note}"
    )

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
        """A row for each class, in the order of labels."""
        labels = (self.target, self.target[self._right], self._predicted[self.known])
        counts = zip(self.names, *(np.bincount(one, minlength=len(self.names)).tolist() for one in labels))
        return [
            ClassRow(name, examples, right, predicted, share_of(right, examples), share_of(right, predicted))
            for name, examples, right, predicted in counts
        ]

    def table_note(self) -> str:
        unit = self.predictions.unit
        return (
            f"Accuracy: of the {unit} of a class, the share that is predicted as this class. Precision: of the {unit} "
            f"that are predicted as a class, the share that belongs to it. The mean accuracy over all classes is "
            f"{percent(self.balanced_accuracy)}."
        )

    @cached_property
    def balanced_accuracy(self) -> float | None:
        """The mean of the accuracies of all classes that have test examples. Each class has the same weight."""
        known = [row.accuracy for row in self.rows if row.accuracy is not None]
        return share_of(sum(known), len(known))

    @cached_property
    def matrix(self) -> list[list[MatrixCell]]:
        """The confusion matrix of the classes in `shown`: a row for each true class, a cell for each predicted class.

        Each row has one more cell at its end. It counts the examples that have no prediction, or were predicted as a
        class that is not shown.
        """
        rows = []
        for label, counts in zip(self.shown, self._counts(self.shown)):
            examples = max(1, self.rows[label].examples)
            cells = [MatrixCell(int(n), n / examples, label == other) for n, other in zip(counts, self.shown)]
            others = self.rows[label].examples - int(counts.sum())
            rows.append([*cells, MatrixCell(others, others / examples)])
        return rows

    @property
    def has_others(self) -> bool:
        """True if an example of a shown class has no prediction, or was predicted as a class that is not shown."""
        return any(row[-1].count for row in self.matrix)

    def _counts(self, labels: Sequence[int]) -> np.ndarray:
        """Return the number of examples by true and predicted label: int64 [labels, labels]."""
        place = np.full(len(self.names) + 1, -1)  # the last entry is for NOTHING
        place[list(labels)] = np.arange(len(labels))
        rows, columns = place[self.target], place[self._predicted]
        inside = (rows >= 0) & (columns >= 0)
        flat = np.bincount(rows[inside] * len(labels) + columns[inside], minlength=len(labels) ** 2)
        return flat.reshape(len(labels), len(labels))

    @cached_property
    def confusions(self) -> list[Confusion]:
        """The most frequent confusions, at most MOST_CONFUSIONS, in descending order."""
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
    def calibration(self) -> Calibration:
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
        """Return the wrong predictions with the highest confidence."""
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
    """Return the array `name`, [N], of the predictions. Raises Malformed if a value is not from `low` to `high`."""
    array = predictions.column(name, kind)
    if not ((array >= low) & (array <= high)).all():
        raise Malformed(f"'{name}' has a value that is not from {low:g} to {high:g}")
    return array
