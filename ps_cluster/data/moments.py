"""Compute the mean and standard deviation of rows that arrive in pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ps_cluster.config.objectives import ArrayField
from ps_cluster.files.values import Malformed

_MOST_CHANNELS = 4096  # a longer last axis is taken for a signal, not for channels, and gets no statistics
_VALUES_AT_ONCE = 2**19  # only some values at once, because as float64 they take up to eight times the memory


class Moments:
    """A running computation of the mean and standard deviation of the values at each position in a row.

    The class adds up the differences from the first row. With sums of the values themselves, the difference between the
    mean of squares and the square of the mean would lose precision for values far from 0.
    """

    def __init__(self) -> None:
        self._origin: np.ndarray | None = None
        # For each position in a row: the number of values, the sum of their differences, and the sum of the squares.
        self.count, self._total, self._squares = (np.zeros(()) for _ in range(3))

    def add(self, rows: np.ndarray, counted: np.ndarray | None = None) -> None:
        """Add rows, float64 [B, ...]. `counted`: which values to count, bool of the same shape; None for all."""
        if self._origin is None and len(rows):
            self._origin = np.where(np.isfinite(rows[0]), rows[0], 0.0)
        with np.errstate(invalid="ignore", over="ignore"):  # results that are not finite are refused later
            apart = rows - (0.0 if self._origin is None else self._origin)
            if counted is not None:
                apart = np.where(counted, apart, 0.0)
            self.count = self.count + (len(rows) if counted is None else counted.sum(0))
            self._total, self._squares = self._total + apart.sum(0), self._squares + (apart**2).sum(0)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the values at each position in a row; 0 at a position without values."""
        return self._total / np.maximum(self.count, 1) + (0.0 if self._origin is None else self._origin)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of the values at each position in a row; 0 at a position without values."""
        count = np.maximum(self.count, 1)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.sqrt(np.maximum(self._squares / count - (self._total / count) ** 2, 0))


class RunningStatistics:
    """A running computation of the mean and standard deviation of a field at each index of its last axis.

    If each row is a single number, there is one mean and one standard deviation, over all rows.

    The statistics of a field are computed only if the field holds images or floats, and its last axis has at most 4,096
    indices. A field that already has statistics, e.g. published ones, keeps them.
    """

    def __init__(self, field: ArrayField):
        self._field = field
        has_statistics = field.is_image or field.dtype.startswith("float")
        long = bool(field.shape) and field.shape[-1] > _MOST_CHANNELS
        self._wanted = has_statistics and not field.mean and not long
        self._moments = Moments()

    def add(self, rows: np.ndarray) -> None:
        """Add the next rows, [B, ...]."""
        if not self._wanted or not rows.size:
            return
        flat = rows.reshape(-1, *self._field.shape[-1:])
        at_once = max(1, _VALUES_AT_ONCE // max(1, flat[:1].size))
        for start in range(0, len(flat), at_once):
            self._moments.add(np.asarray(flat[start : start + at_once], np.float64))

    @property
    def field(self) -> ArrayField:
        """The field with the mean and standard deviation of all rows so far. Raises Malformed if they are not finite."""
        if not np.any(self._moments.count):
            return self._field
        mean, std = self._moments.mean, self._moments.std
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise Malformed("an input has values that are not finite, or too large")
        return replace(self._field, mean=tuple(np.atleast_1d(mean).tolist()), std=tuple(np.atleast_1d(std).tolist()))
