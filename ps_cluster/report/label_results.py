"""Find out which labels a network recognises, if an example may have any number of labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from ps_cluster.files.json_files import Json
from ps_cluster.files.values import Malformed
from ps_cluster.report.analysis import MISTAKES, Analysis, Mistake
from ps_cluster.report.calibration import Calibration, percent, reliability, share_of
from ps_cluster.report.plots import Plot
from ps_cluster.runs.predictions import Predictions


@dataclass(frozen=True)
class LabelRow:
    """The results of one label. A share is None if there are no examples to compute it from.

    Attributes:
      examples: the number of test examples that have the label.
      predicted: the number of test examples for which the label is predicted.
      found: the recall, the share of `examples` for which the label is predicted.
      precision: the share of `predicted` that have the label.
      f1: the harmonic mean of `found` and `precision`.
      accuracy: the share of all test examples for which the prediction is right.
    """

    name: str
    examples: int
    predicted: int
    found: float | None
    precision: float | None
    f1: float | None
    accuracy: float

    @property
    def merit(self) -> tuple[float, ...] | None:
        return None if self.f1 is None else (self.f1, -self.examples)

    @property
    def cells(self) -> list[str]:
        shares = map(percent, (self.f1, self.found, self.precision, self.accuracy))
        return [*shares, f"{self.examples:,}", f"{self.predicted:,}"]


class LabelResults(Analysis):
    """The analysis of predicted probabilities of labels. A label is predicted if its probability is above 1/2."""

    heading, worst = "Labels", "labels with the lowest F1"
    table_columns = ("label", "F1", "found", "precision", "accuracy", "with label", "predicted")

    def __init__(self, predictions: Predictions, target_name: str = "target"):
        super().__init__(predictions, target_name)
        self.names = predictions.classes
        self.target = predictions.column("target", "u", axes=2)
        self._probability = predictions.column("prediction", "f", axes=2)
        if self.target.shape != self._probability.shape or self.target.shape[1] != len(self.names):
            raise Malformed(
                f"its targets have the shape {self.target.shape} and its predictions {self._probability.shape}, but there "
                f"are {len(self.names)} labels"
            )
        self.known = np.isfinite(self._probability)
        if not ((self._probability >= 0) & (self._probability <= 1) | ~self.known).all() or self.target.max() > 1:
            raise Malformed("a probability or a label is not from 0 to 1")
        self._predicted = self.known & (self._probability > 0.5)
        self._right = self.known & (self._predicted == self.target)

    @property
    def accuracy(self) -> float:
        """The share of predictions that are right, over all examples and labels."""
        return float(self._right.mean())

    @property
    def all_right(self) -> float:
        """The share of examples whose labels are all predicted right."""
        return float(self._right.all(axis=1).mean())

    @cached_property
    def rows(self) -> list[LabelRow]:
        """A row for each label, in the order of the labels."""
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

    def table_note(self) -> str:
        unit = self.predictions.unit
        return (
            f"A label is predicted if its probability is above 1/2. Found (recall): of the {unit} with a label, the "
            f"share for which it is predicted. Precision: of the {unit} for which a label is predicted, the share "
            f"that has it. F1: the harmonic mean of the two. For {percent(self.all_right)} of the {unit}, all labels "
            "are right."
        )

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration over all examples and labels.

        A prediction says that a label is present, or that it is absent. The confidence is the predicted probability
        that this is right.
        """
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
        """Return the wrong predictions with the highest confidence, at most one for each example."""
        wrong = np.where(self.known & ~self._right, self._confidence, -1.0)
        label = wrong.argmax(axis=1)
        sure = wrong[np.arange(len(wrong)), label]
        surest = np.argsort(-sure, kind="stable")[:MISTAKES]
        return [self._mistake(int(index), int(label[index])) for index in surest if sure[index] >= 0]

    def _mistake(self, example: int, label: int) -> Mistake:
        words = f"{self.names[label]}", f"no {self.names[label]}"
        predicted, truth = words if self._predicted[example, label] else words[::-1]
        return Mistake(example, predicted, truth, percent(float(self._confidence[example, label])))
