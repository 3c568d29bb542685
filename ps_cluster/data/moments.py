"""Compute mean and standard deviation of rows while they pass by in pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ps_cluster.config.objectives import Field
from ps_cluster.files.values import Malformed

_MOST_CHANNELS = 4096  # that statistics are kept of: a longer last axis is a signal, not channels
_VALUES_AT_ONCE = 2**19  # as float64 they are up to eight times as large


def _ignore_overflow() -> np.errstate:
    """Numbers whose squares are no finite floats are refused by their mean or deviation."""
    return np.errstate(invalid="ignore", over="ignore")


class Moments:
    """Sums over rows of numbers, for each place of a row, as floats.

    They are of the distance from one row: the mean of squares less the square of the mean would cancel far from 0.

    Attributes:
      count: how many values were counted, for each place.
    """

    def __init__(self) -> None:
        self._origin: np.ndarray | None = None
        self.count, self._total, self._squares = (np.zeros(()) for _ in range(3))

    def add(self, rows: np.ndarray, counted: np.ndarray | None = None) -> None:
        """Take in the next rows float64 [B, ...]. `counted`: bool of the same shape, which values; None for all."""
        if self._origin is None and len(rows):
            self._origin = np.where(np.isfinite(rows[0]), rows[0], 0.0)
        with _ignore_overflow():
            apart = rows - (0.0 if self._origin is None else self._origin)
            if counted is not None:
                apart = np.where(counted, apart, 0.0)
            self.count = self.count + (len(rows) if counted is None else counted.sum(0))
            self._total, self._squares = self._total + apart.sum(0), self._squares + (apart**2).sum(0)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the values; 0 where there are none."""
        return self._total / np.maximum(self.count, 1) + (0.0 if self._origin is None else self._origin)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of the values; 0 where there are none."""
        count = np.maximum(self.count, 1)
        with _ignore_overflow():
            return np.sqrt(np.maximum(self._squares / count - (self._total / count) ** 2, 0))


class RunningStatistics:
    """Collects what `field` needs, along the last axis (of numbers: of all of them), where it has a meaning."""

    def __init__(self, field: Field):
        self._field = field
        has_statistics = field.is_image or field.dtype.startswith("float")
        long = bool(field.shape) and field.shape[-1] > _MOST_CHANNELS
        self._wanted = has_statistics and not field.mean and not long
        self._moments = Moments()

    def add(self, rows: np.ndarray) -> None:
        """Take the next rows [B, ...] into account."""
        if not self._wanted or not rows.size:
            return
        flat = rows.reshape(-1, *self._field.shape[-1:])
        at_once = max(1, _VALUES_AT_ONCE // max(1, flat[:1].size))
        for start in range(0, len(flat), at_once):
            self._moments.add(np.asarray(flat[start : start + at_once], np.float64))

    @property
    def field(self) -> Field:
        """The field with mean and standard deviation of all rows so far. Raises Malformed if they are not finite."""
        if not np.any(self._moments.count):
            return self._field
        mean, std = self._moments.mean, self._moments.std
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise Malformed("an input has values that are not finite, or too large")
        return replace(self._field, mean=tuple(np.atleast_1d(mean).tolist()), std=tuple(np.atleast_1d(std).tolist()))
