"""Read a vector from a snapshot that holds only what has changed in the vector since the last full snapshot.

This module does not import TensorFlow.
"""

from __future__ import annotations

import numpy as np

from ps_cluster.files.values import Malformed


def ranges_of(begins: np.ndarray, width: int) -> np.ndarray:
    """Return the parts of a vector that hold certain rows of embedding tables.

    The parts are ranges [begin, end) in ascending order, int64 [k, 2].

    `begins`: int64 [rows], the position of each row's first number, in any order. `width`: how many numbers a row has.
    """
    begins = np.sort(begins)
    is_first = np.diff(begins, prepend=-2 * width) != width  # rows that do not directly follow another row
    return np.stack([begins[is_first], begins[np.roll(is_first, -1)] + width], axis=1)


class ChangedVector:
    """A vector, float32 [n], of a snapshot that holds only the numbers that have changed since a full snapshot.

    The other numbers are read from that full snapshot. Indexing the vector with a slice returns this part as an array,
    so the whole vector need not be in memory. `shape` and `dtype` describe the whole vector.
    """

    def __init__(self, full: np.ndarray, ranges: np.ndarray, values: np.ndarray):
        """Create the vector, and check the ranges of the changed numbers.

        Args:
          full: float32 [n], the vector in the full snapshot.
          ranges: int64 [k, 2], as from `ranges_of`.
          values: float32 [m], the numbers in the ranges.
        Raises:
          Malformed: the ranges are not ascending, exceed the vector, or do not contain as many numbers as `values`.
        """
        bounds = np.concatenate([[0], ranges.reshape(-1), [len(full)]])
        lengths = np.diff(ranges).reshape(-1)
        if ranges.shape[1] != 2 or (np.diff(bounds) < 0).any() or lengths.sum() != len(values):
            raise Malformed(
                "the ranges of changed numbers do not fit the full state, or their total length is not the number of "
                "changed numbers"
            )
        self.shape, self.dtype = full.shape, full.dtype
        self._full, self._ranges, self._values = full, ranges, values
        self._indices = np.concatenate([[0], np.cumsum(lengths)])  # where each range begins in `values`, and the end

    def __getitem__(self, block: slice) -> np.ndarray:
        begin, end, _ = block.indices(len(self._full))
        found = self._full[begin:end].copy()
        first = int(np.searchsorted(self._ranges[:, 1], begin, side="right"))
        last = max(first, int(np.searchsorted(self._ranges[:, 0], end)))
        indices = self._indices[first : last + 1]
        shifts = np.repeat(self._ranges[first:last, 0] - indices[:-1], np.diff(indices))
        positions = np.arange(indices[0], indices[-1]) + shifts - begin
        inside = (positions >= 0) & (positions < len(found))
        found[positions[inside]] = self._values[indices[0] : indices[-1]][inside]
        return found
