"""Tell the user how full the tables of `DynamicEmbedding` layers are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ps_cluster.models.keyed_rows import EMPTY, KeyedTableLayout
from ps_cluster.notices import LogLine
from ps_cluster.runs.checkpoint_arrays import KEYED
from ps_cluster.runs.logs import ROWS_END
from ps_cluster.runs.result_rows import KeyedUse

AGAIN_AT = 10  # a table gets another line once it has evicted this many times as many rows as at its last line


class TableOccupancy:
    """Reads from the arrays of a checkpoint how full the tables of `DynamicEmbedding` layers are.

    Attributes:
      uses: how full each table was at the last checkpoint.
    """

    def __init__(self, tables: Sequence[KeyedTableLayout]):
        """Create a reader. `tables`: the properties of each table, in the order in which checkpoints have them."""
        self._tables = tables
        self._next = [1] * len(tables)
        self.uses: list[KeyedUse] = []

    def log_lines(self, arrays: Mapping[str, np.ndarray]) -> Iterator[LogLine]:
        """Yield a log line for each table that has evicted rows because it was full. Also update `uses`.

        A table gets another line only once it has evicted `AGAIN_AT` times as many rows as at its last line.

        Args:
          arrays: the arrays of a checkpoint.
        """
        ends = np.cumsum([table.state_size for table in self._tables])
        parts = np.split(arrays[KEYED], ends[:-1]) if self._tables else []
        states = [part.reshape(table.buckets, -1) for table, part in zip(self._tables, parts)]
        self.uses = [
            KeyedUse(
                name=table.name,
                places=table.capacity,
                rows=int((state[:, : table.ways] != EMPTY).sum()),
                ended=int(state[:, -1].sum()),
            )
            for table, state in zip(self._tables, states)
        ]
        for index, use in enumerate(self.uses):
            if use.ended >= self._next[index]:
                self._next[index] = AGAIN_AT * use.ended
                advice = (
                    "give the DynamicEmbedding a larger budget, or reduce its rows with admit_after or expire_after"
                )
                yield ROWS_END(f"{use.line}: {advice}")
