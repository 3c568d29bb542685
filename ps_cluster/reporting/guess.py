"""Compute the metric that an answer gets which does not look at the inputs. Whoever is not better has learned nothing."""

from __future__ import annotations

from functools import singledispatch
from pathlib import Path

import numpy as np

from ps_cluster.catalogue.objectives import OBJECTIVES, Classification, Objective, Regression
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError

_ROWS = 2**16  # targets that are looked at together


def guess_of_run(pointer: Path) -> float | None:
    """Return the guess for the data set that a run's dataset.json names; None if it is unknown or not there."""
    try:
        dataset = load_pointed(pointer)
        return guess(OBJECTIVES[dataset.spec.objective], dataset)
    except (UserError, OSError):
        return None


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
