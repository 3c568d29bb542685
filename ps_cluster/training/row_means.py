"""Compute the means of a progress row."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ps_cluster.files.values import finite

_SUMMED = ("loss", "learning_rate", "staleness", "metric", "examples")


class Means(NamedTuple):
    """The means of some updates. A mean is None if there are no updates, or if it is not finite (JSON can't hold it)."""

    loss: float | None
    metric: float | None  # per example; the other means are per step
    learning_rate: float | None
    staleness: float | None
    diverged: bool  # whether the loss of an update was NaN or infinite


class RowMeans:
    """Keeps sums over the steps that were applied since the previous progress row."""

    def __init__(self) -> None:
        self._sums, self._rows = dict.fromkeys(_SUMMED, 0.0), 0

    def add(self, rows: np.ndarray) -> None:
        """Add applied steps. `rows`: their rows in the ledger, a structured array [k] of `ledger.ROW`."""
        for name in _SUMMED:
            # Progress rows have the learning rate that was applied. Rows of the ledger have the scheduled rate.
            applied = rows["rate_factor"] if name == "learning_rate" else 1.0
            self._sums[name] += float((rows[name] * applied).sum())
        self._rows += len(rows)

    def take(self) -> Means:
        """Return the means over the steps that were added since the previous call, and set the sums to 0."""
        sums, count = self._sums, self._rows
        self._sums, self._rows = dict.fromkeys(_SUMMED, 0.0), 0

        def mean(name: str, number: float) -> float | None:
            return finite(sums[name] / number) if number else None

        return Means(
            loss=mean("loss", count),
            metric=mean("metric", sums["examples"]),
            learning_rate=mean("learning_rate", count),
            staleness=mean("staleness", count),
            diverged=not math.isfinite(sums["loss"]),
        )
