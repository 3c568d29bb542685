"""Compute the metric that an answer gets which does not look at the inputs. Whoever is not better has learned nothing."""

from __future__ import annotations

import math
from functools import singledispatch
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ps_cluster.catalogue.objectives import OBJECTIVES, Classification, MultiLabel, Objective, Regression
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError
from ps_cluster.run.rows.summary import EvaluationSummary

_ROWS = 2**16  # targets that are looked at together


class Guess(NamedTuple):
    """The score of a guess on a run's test examples (accuracy or mean absolute error), and their number."""

    value: float
    examples: int

    def is_beaten_by(self, scores: EvaluationSummary) -> bool | None:
        """Return whether the best score is better than chance: an accuracy by three standard errors, an error by 1 %.

        Returns None where nothing was scored.
        """
        accuracies = [row.test_accuracy for row in scores.history if row.test_accuracy is not None]
        if accuracies:
            return max(accuracies) > self.value + 3 * math.sqrt(self.value * (1 - self.value) / self.examples)
        errors = [row.test_error for row in scores.history if row.test_error is not None]
        return min(errors) < 0.99 * self.value if errors else False if scores.history else None


def guess_of_run(pointer: Path) -> Guess | None:
    """Return the guess for the data set that a run's dataset.json names; None if it is unknown or not there."""
    try:
        dataset = load_pointed(pointer)
        value = guess(OBJECTIVES[dataset.spec.objective], dataset)
    except (UserError, OSError):
        return None
    return None if value is None else Guess(value, dataset.test_examples)


@singledispatch
def guess(objective: Objective, dataset: PackedDataset) -> float | None:
    """Return the metric of a guess on the test examples; None for an objective for which none is known."""
    return None


@guess.register
def _(objective: Classification, dataset: PackedDataset) -> float | None:
    """Return the share of the most frequent class: that of the answer that always names it."""
    if not dataset.spec.classes:
        return None
    counts, labels = np.zeros(len(dataset.spec.classes), np.int64), dataset.target("test")
    for first in range(0, len(labels), _ROWS):
        counts += np.bincount(np.asarray(labels[first : first + _ROWS], np.int64), minlength=len(counts))
    return float(counts.max() / len(labels))


@guess.register
def _(objective: MultiLabel, dataset: PackedDataset) -> float:
    """Return the accuracy of the answer that gives each label to all examples, or to none, whichever is right more often."""
    labels = dataset.target("test").reshape(dataset.test_examples, -1)
    counts = np.zeros(labels.shape[1], np.int64)
    for first in range(0, len(labels), _ROWS):
        counts += np.count_nonzero(labels[first : first + _ROWS], axis=0)
    return float((np.maximum(counts, len(labels) - counts) / len(labels)).mean())


@guess.register
def _(objective: Regression, dataset: PackedDataset) -> float | None:
    """Return the mean absolute error of the mean of the training targets."""
    if not dataset.spec.target.mean:
        return None
    targets = dataset.target("test").reshape(dataset.test_examples, -1)
    mean, total = np.array(dataset.spec.target.mean), 0.0
    for first in range(0, len(targets), _ROWS):
        total += float(np.abs(np.asarray(targets[first : first + _ROWS], np.float64) - mean).sum())
    found = total / targets.size
    return found if np.isfinite(found) else None
