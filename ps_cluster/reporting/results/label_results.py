"""Find out which labels a network finds, where an example may have any number of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from ps_cluster.files.malformed import Malformed
from ps_cluster.reporting.calibration import Calibration, calibration
from ps_cluster.reporting.plot import Plot
from ps_cluster.reporting.results.analysis import MISTAKES, MOST_SHOWN, Analysis, Json, Mistake, percent, share_of
from ps_cluster.reporting.results.reliability import as_json, reliability
from ps_cluster.run.kept_predictions import Predictions


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
