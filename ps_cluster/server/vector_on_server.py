"""A vector of a snapshot. Its rows of embedding tables stay on the parameter server until they are read in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ps_cluster.config.lazy import tf


class Extent(Enum):
    """How much of the embedding tables a saved state holds.

    WHOLE: all rows. FULL: all rows, and from then on the servers record which rows change. CHANGED: the rows that have
    changed since the last FULL state. A state of any extent holds all values outside of tables.
    """

    WHOLE = "whole"
    FULL = "full"
    CHANGED = "changed"


@dataclass(frozen=True)
class ChangedRows:
    """The positions of changed rows in a shard's whole vector, for a `VectorOnServer` that holds only changed rows.

    The whole vector begins with `dense` weights outside of tables. The rows of each group of tables follow.
    """

    dense: int  # the number of weights outside of tables; all these weights count as changed
    rows: Sequence[np.ndarray]  # the changed rows of each group of tables, int64 [k], ascending
    widths: Sequence[int]  # the width of each group
    sizes: Sequence[int]  # the number of weights of each group

    @property
    def changed_sizes(self) -> list[int]:
        """The number of changed weights in each group of tables."""
        return [len(rows) * width for rows, width in zip(self.rows, self.widths, strict=True)]

    def within(self, place: int, size: int) -> tuple[int, np.ndarray, int]:
        """Locate the changed rows in a piece of the network's vector. The piece begins at `place` and has `size` numbers.

        The piece has to be dense (outside of tables), or to consist of whole rows of one group.

        Returns:
          A tuple of three:
            the position in the `VectorOnServer` at which the changed numbers of the piece begin;
            the positions in the piece at which the changed rows begin, int64 [k];
            the width of a row, which is 1 for dense numbers.
        """
        if place < self.dense:
            return place, np.arange(size), 1
        ends = self.dense + np.cumsum(self.sizes)
        group = int(np.searchsorted(ends, place, side="right"))
        width, begin = self.widths[group], int(ends[group]) - self.sizes[group]
        low, high = np.searchsorted(self.rows[group], [(place - begin) // width, (place - begin + size) // width])
        first = self.dense + sum(self.changed_sizes[:group]) + int(low) * width
        return first, self.rows[group][low:high] * width + begin - place, width


class VectorOnServer:
    """A shard's vector at the version of a snapshot. Its copy on the server is freed together with this object.

    The vector is read from its beginning to its end. Each message from the server also contains some of the numbers
    that follow the requested ones, so that a network with many small tables does not need a message for each table.

    Attributes:
      changes: where the numbers are in the whole vector, if this vector has only the changed rows of the tables; else
        None.
    """

    def __init__(
        self,
        dense: np.ndarray,
        tables: Sequence[tf.Tensor],
        sizes: Sequence[int],
        device: str,
        changes: ChangedRows | None = None,
    ):
        """Store the parts of the vector.

        Args:
          dense: float32 [n], the numbers outside of tables.
          tables: for each group of tables, its rows, float32 [rows, width], on the server. In the vector they follow
            `dense`. An empty tensor [0] stands for rows that are all 0.
          sizes: the number of weights in each group. With `changes`, the number of changed weights.
          device: the name of the shard's device.
        """
        self._dense, self._tables, self._device, self.changes = dense, tables, device, changes
        self._ends = len(dense) + np.cumsum(sizes)
        self._first, self._fetched = 0, dense  # the last fetched piece: its position and its numbers

    def read(self, begin: int, end: int, ahead: int) -> np.ndarray:
        """Return the numbers from `begin` to `end`, float32: either dense ones, or whole rows of one group of tables.

        Args:
          ahead: how many numbers are fetched from the server at a time.
        """
        if end <= max(begin, len(self._dense)):
            return self._dense[begin:end]
        if begin < self._first or end > self._first + len(self._fetched):
            self._first, self._fetched = begin, self._fetch(begin, max(end, begin + ahead))
        return self._fetched[begin - self._first : end - self._first]

    def _fetch(self, begin: int, end: int) -> np.ndarray:
        """Return the numbers from `begin` to `end`, or to the end of the group of tables that `begin` is in.

        If `end` is inside a row that is stored on the server, the result includes the rest of this row.
        """
        group = int(np.searchsorted(self._ends, begin, side="right"))
        rows, end = self._tables[group], min(end, int(self._ends[group]))
        if rows.shape.rank == 1:
            return np.zeros(end - begin, np.float32)
        width, first = rows.shape[1], int(self._ends[group]) - rows.shape.num_elements()
        with tf.device(self._device):
            piece = rows[(begin - first) // width : -(-(end - first) // width)]
        return np.asarray(piece).reshape(-1)
