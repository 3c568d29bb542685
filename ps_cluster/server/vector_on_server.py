"""A vector of a snapshot whose rows of embedding tables stay on the parameter server until they are read, in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ps_cluster.config.lazy import tf


class VectorOnServer:
    """A shard's vector at the version of a snapshot. Its copy on the server is freed together with this object.

    It is read from its beginning to its end. Each message from the server brings some of the numbers that are read next too,
    because a network may have many small tables.
    """

    def __init__(self, dense: np.ndarray, tables: Sequence[tf.Tensor], sizes: Sequence[int], device: str):
        """Take a copy of a vector.

        Args:
          dense: float32 [n], the numbers that are in no table.
          tables: the rows of each group of tables that continue the vector, float32 [rows, width], on the server; [0]: they
            are 0.
          sizes: the number of weights in each group.
          device: the name of the shard's device.
        """
        self._dense, self._tables, self._device = dense, tables, device
        self._ends = len(dense) + np.cumsum(sizes)
        self._first, self._fetched = 0, dense  # the place of what was fetched last, and its numbers

    def read(self, begin: int, end: int, ahead: int) -> np.ndarray:
        """Return the numbers from `begin` to `end`, float32. They must be dense, or whole rows of one group.

        Args:
          ahead: how many numbers are fetched from the server at a time.
        """
        if end <= len(self._dense):
            return self._dense[begin:end]
        if begin < self._first or end > self._first + len(self._fetched):
            self._first, self._fetched = begin, self._fetch(begin, max(end, begin + ahead))
        return self._fetched[begin - self._first : end - self._first]

    def _fetch(self, begin: int, end: int) -> np.ndarray:
        """Return the numbers from `begin` to `end`, or to the end of their group of tables."""
        group = int(np.searchsorted(self._ends, begin, side="right"))
        rows, end = self._tables[group], min(end, int(self._ends[group]))
        if rows.shape.rank == 1:
            return np.zeros(end - begin, np.float32)
        width, first = rows.shape[1], int(self._ends[group]) - rows.shape.num_elements()
        with tf.device(self._device):
            piece = rows[(begin - first) // width : -(-(end - first) // width)]
        return np.asarray(piece).reshape(-1)
