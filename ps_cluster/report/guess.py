"""Compare the scores of a run with the score of a guess that does not look at the inputs.

Only a network that is better than the guess has learned something.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.runs.result_rows import EvaluationSummary

FEWEST_ERRORS = 10  # with fewer test examples, a mean error is not meaningful


class Guess(NamedTuple):
    """The score of a guess that does not look at the inputs, on the test examples of a run.

    `value`: the accuracy or the error of the guess. `examples`: the number of test examples.
    """

    value: float
    examples: int

    def is_beaten_by(self, scores: EvaluationSummary) -> bool | None:
        """Return whether the best score is clearly better than the guess.

        An accuracy has to be three standard errors higher, and an error has to be 1 % lower. An AUC that is three
        standard errors above 0.5 is enough too: if few examples are positive, as with clicks, a network may have learned
        much and still never predict "yes", so that its accuracy is that of the guess.

        Returns None if nothing was scored, or if there are too few examples to decide (`is_too_uncertain_for`).
        """
        if self.is_too_uncertain_for(scores):
            return None
        if accuracies := _accuracies(scores):
            return max(accuracies) > self.value + self._chance or self._is_ranked(scores)
        errors = [row.test_error for row in scores.history if row.test_error is not None]
        if errors:
            return min(errors) < 0.99 * self.value
        return False if scores.history else None

    def is_too_uncertain_for(self, scores: EvaluationSummary) -> bool:
        """Return whether there are too few examples to tell that a network has learned nothing.

        For accuracies, this is the case if chance can explain the best accuracy, and would even explain an accuracy
        halfway between the guess and 100 %. For errors, `FEWEST_ERRORS` examples are enough.
        """
        if accuracies := _accuracies(scores):
            best, half = max(accuracies), (1 - self.value) / 2
            is_chance = best <= self.value + self._chance and not self._is_ranked(scores)
            return self._chance > half and is_chance
        return self.examples < FEWEST_ERRORS and any(row.test_error is not None for row in scores.history)

    def _is_ranked(self, scores: EvaluationSummary) -> bool:
        """Return whether an AUC is better than chance can explain.

        If P of N examples are positive, the variance of an AUC by chance is (N + 1) / (12 * P * (N - P)).
        """
        aucs = [row.metrics["auc"] for row in scores.history if "auc" in row.metrics]
        pairs = self.value * (1 - self.value) * self.examples**2
        return bool(aucs and pairs) and max(aucs) > 0.5 + 3 * math.sqrt((self.examples + 1) / (12 * pairs))

    @property
    def _chance(self) -> float:
        """Three standard errors of the guess's accuracy."""
        return 3 * math.sqrt(self.value * (1 - self.value) / self.examples)


def _accuracies(scores: EvaluationSummary) -> list[float]:
    return [row.test_accuracy for row in scores.history if row.test_accuracy is not None]


def guess_for(dataset: PackedDataset | None) -> Guess | None:
    """Return the guess for a data set; None if the data set is missing or unreadable, or its objective has no guess."""
    if dataset is None:
        return None
    try:
        value = OBJECTIVES[dataset.spec.objective].guess(dataset.target("test"), dataset.spec)
    except (UserError, OSError):
        return None
    return None if value is None else Guess(value, dataset.test_examples)
