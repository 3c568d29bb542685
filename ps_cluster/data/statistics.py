"""Mean and standard deviation of the rows of a field, gathered while they pass by in pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ps_cluster.catalogue.examples import Field
from ps_cluster.files.malformed import Malformed

_MOST_CHANNELS = 4096  # that statistics are kept of: a longer last axis is a signal, not channels
_VALUES_AT_ONCE = 2**19  # as float64 they are up to eight times as large


class RunningStatistics:
    """Collects what `field` needs, along the last axis (of numbers: of all of them), where it has a meaning."""

    def __init__(self, field: Field):
        self._field = field
        has_statistics = field.is_image or field.dtype.startswith("float")
        long = bool(field.shape) and field.shape[-1] > _MOST_CHANNELS
        self._wanted = has_statistics and not field.mean and not long
        # Of the distance from one row: the mean of squares less the square of the mean would cancel far from 0.
        self._origin: np.ndarray | None = None
        self._count, self._total, self._squares = 0, np.zeros(()), np.zeros(())

    def add(self, rows: np.ndarray) -> None:
        """Take the next rows [B, ...] into account."""
        if not self._wanted or not rows.size:
            return
        flat = rows.reshape(-1, *self._field.shape[-1:])
        if self._origin is None:
            self._origin = np.asarray(flat[0], np.float64)
        at_once = max(1, _VALUES_AT_ONCE // max(1, flat[:1].size))
        for start in range(0, len(flat), at_once):
            apart = np.asarray(flat[start : start + at_once], np.float64) - self._origin
            self._count, self._total = self._count + len(apart), self._total + apart.sum(0)
            self._squares = self._squares + (apart**2).sum(0)

    @property
    def field(self) -> Field:
        """The field with mean and standard deviation of all rows so far. Raises Malformed if they are not finite."""
        if self._origin is None:
            return self._field
        if not (np.isfinite(self._total).all() and np.isfinite(self._squares).all()):
            raise Malformed("an input has values that are not finite, or too large")
        mean = self._total / self._count
        deviation = np.sqrt(np.maximum(self._squares / self._count - mean**2, 0))
        mean = mean + self._origin
        return replace(
            self._field, mean=tuple(np.atleast_1d(mean).tolist()), std=tuple(np.atleast_1d(deviation).tolist())
        )
