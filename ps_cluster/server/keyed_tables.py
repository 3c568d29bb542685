"""Keep a server's part of a dynamic embedding table, and decide which keys have a row.

    pull    keys ──►  rows; a key without a row gets its initial values. A pull changes nothing.
    push    keys ──►  indices of their rows. These steps come first, in the shard's critical section:
              the shard's version is recorded as the last use of each key; a key unused for too long counts as new
              a key that is pushed for the `admit_after`-th time is admitted; until then its gradients are dropped
              an admitted key gets an empty place in its bucket; if there is none, the row that was unused for longest
              is evicted, and the key gets its place. The key's row starts with its initial values

A bucket is a group of places for rows; the hash of a key decides which bucket can hold its row (models/keyed_rows.py).
The content of a table depends only on the updates and their order, like all other weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.models.keyed_rows import EMPTY, KeyedPart
from ps_cluster.server.table_shard import TableShard

# The stored last use of an empty place. A row that the table had at the start has -1, so it is older than any update.
_NEVER = -2


class _Entries(NamedTuple):
    """Distinct keys, and where they are in the shard. Each field is int64 [k]."""

    keys: tf.Tensor  # the keys
    buckets: tf.Tensor  # the number of each key's bucket within the shard
    columns: tf.Tensor  # the column of each key in its bucket; -1 if the bucket does not hold the key

    @property
    def cells(self) -> tf.Tensor:
        """The indices of the keys in the table's arrays, int64 [k, 2]; meaningless for keys not in the table."""
        return tf.stack([self.buckets, tf.maximum(self.columns, 0)], axis=1)

    def chosen(self, mask: tf.Tensor) -> _Entries:
        """Return the entries for which `mask` (bool [k]) is true."""
        return _Entries(*(tf.boolean_mask(one, mask) for one in self))


class KeyedTableShard(TableShard):
    """A server's part of a dynamic embedding table, whose rows are found by their keys.

    Each bucket has `ways` columns for keys that have a row, and after them columns for keys that wait for a row.

    Attributes:
      layout: the size and the settings of the whole table.
      rows: float32 [buckets * ways, width].
      keys: int64 [buckets, columns], EMPTY where there is no key.
      used: int64 [buckets, columns], the version at the last use of the key.
      sightings: int64 [buckets, columns], the number of updates with a gradient for the key.
      ended: int64 [buckets, 1], the number of rows of each bucket that were evicted because another key needed their
        place.
    """

    def __init__(self, values: np.ndarray, settings: RuleSettings, part: KeyedPart, version: tf.Variable):
        """Create the variables.

        Args:
          values: float32 [buckets * ways, width], the initial rows.
          version: int64 [], the shard's version.
        """
        super().__init__(values, settings)
        self.layout, self._part, self._version = part.layout, part, version
        waiting = part.layout.columns - part.layout.ways
        keys = np.pad(part.keys.reshape(-1, part.layout.ways), ((0, 0), (0, waiting)), constant_values=EMPTY)
        first = keys, np.where(keys == EMPTY, _NEVER, -1), np.zeros_like(keys), np.zeros_like(keys[:, :1])
        self.keys, self.used, self.sightings, self.ended = (tf.Variable(one, trainable=False) for one in first)

    @property
    def bookkeeping(self) -> tuple[tf.Variable, ...]:
        """All variables except rows and slots, int64 [buckets, …] each."""
        return self.keys, self.used, self.sightings, self.ended

    def state(self) -> tf.Tensor:
        """Return the `bookkeeping` for a checkpoint, int64 [buckets, `layout.state_columns`].

        Keys that were not used in the last `layout.expire_after` versions are left out.
        """
        keys, used = self.keys.read_value(), self.used.read_value()
        if self.layout.expire_after is not None:
            keys = tf.where(self._version.read_value() - used <= self.layout.expire_after, keys, EMPTY)
        return tf.concat([keys, used, self.sightings.read_value(), self.ended.read_value()], axis=1)

    def restore(self, state: np.ndarray) -> None:
        """Restore the `bookkeeping` from what the method `state` returned. The array may have been flattened."""
        widths = [variable.shape[1] for variable in self.bookkeeping]
        parts = np.split(state.reshape(-1, sum(widths)), np.cumsum(widths)[:-1], axis=1)
        for variable, part in zip(self.bookkeeping, parts, strict=True):
            variable.assign(part)

    def indices_or_keys(self, ids: tf.Tensor, servers: int) -> tf.Tensor:
        return ids

    def keys_at(self, indices: tf.Tensor) -> tf.Tensor:
        return tf.gather_nd(self.keys, tf.stack([indices // self.layout.ways, indices % self.layout.ways], axis=1))

    def indices_in_table(self, indices: np.ndarray) -> np.ndarray:
        """Return the indices in the whole table, int64 [u], for indices in the shard's part, int64 [u]."""
        ways = self.layout.ways
        found: np.ndarray = (indices // ways * self._part.servers + self._part.index) * ways + indices % ways
        return found

    def read(self, wanted: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Return the rows of some keys, concatenated, [u * width] in `dtype`. `wanted`: the keys, int64 [u]."""
        found, is_there = self._find(wanted)
        has_row = is_there & (found.columns < self.layout.ways)
        rows = tf.gather(self.rows, tf.where(has_row, self._indices(found), 0))
        others = tf.where(~has_row)
        initial = self.layout.initial(tf.gather(wanted, others[:, 0]))
        return tf.reshape(tf.cast(tf.tensor_scatter_nd_update(rows, others, initial), dtype), [-1])

    def rows_to_update(self, wanted: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Record that an update uses some keys, and give a row to each new key that has been pushed often enough.

        See `TableShard.rows_to_update`.
        """
        layout, now = self.layout, self._version.read_value()
        found, is_there = self._find(wanted)
        seen = tf.where(is_there, tf.gather_nd(self.sightings, found.cells), 0) + 1
        has_row = is_there & (found.columns < layout.ways)
        is_admitted = ~has_row & (seen >= layout.admit_after)
        stays = is_there & ~is_admitted
        with tf.control_dependencies([seen, has_row]):  # both are read before anything changes
            noted = [
                self._write(found.chosen((found.columns >= 0) & ~stays), _NEVER, 0, is_empty=True),
                self._write(found.chosen(stays), now, tf.boolean_mask(seen, stays)),
            ]
        if layout.admit_after > 1:
            _, entered = self._enter(found.chosen(~stays & ~is_admitted), layout.ways, layout.columns, now, noted)
            noted = [entered]
        begun, entered = self._enter(found.chosen(is_admitted), 0, layout.ways, now, noted)
        with tf.control_dependencies([entered, self._begin(begun.chosen(begun.columns >= 0))]):
            columns = tf.tensor_scatter_nd_update(
                tf.where(has_row, found.columns, -1), tf.where(is_admitted), begun.columns
            )
            has_row = columns >= 0
            indices = tf.boolean_mask(self._indices(found._replace(columns=columns)), has_row)
        return indices, tf.reshape(tf.boolean_mask(tf.reshape(gradient, [-1, self.width]), has_row), [-1])

    def _find(self, keys: tf.Tensor) -> tuple[_Entries, tf.Tensor]:
        """Return the entries of some keys, and for each key whether the shard holds it, bool [k].

        A key that was not used in the last `layout.expire_after` versions counts as not held.
        """
        buckets = self.layout.bucket_of(keys) // self._part.servers
        found = _Entries(keys, buckets, self.layout.columns_of(keys, buckets, self.keys))
        is_there = found.columns >= 0
        if self.layout.expire_after is not None:
            unused = self._version.read_value() - tf.gather_nd(self.used, found.cells)
            is_there &= unused <= self.layout.expire_after
        return found, is_there

    def _indices(self, entries: _Entries) -> tf.Tensor:
        """Return the indices of the entries' rows, int64 [k]; -1 for an entry whose column is -1.

        The index has no meaning for a key that waits for a row.
        """
        return tf.where(entries.columns >= 0, entries.buckets * self.layout.ways + entries.columns, -1)

    def _write(
        self, entries: _Entries, used: tf.Tensor | int, seen: tf.Tensor | int, *, is_empty: bool = False
    ) -> tf.Operation:
        """Write the key, the last use and the number of sightings into the cells of some entries.

        Args:
          used, seen: int64 [] or [k], the version of the last use, and the sightings.
          is_empty: whether to write EMPTY instead of the keys.
        """
        cells, shape = entries.cells, tf.shape(entries.keys)
        values = tf.fill(shape, tf.constant(EMPTY, tf.int64)) if is_empty else entries.keys, used, seen
        return tf.group(
            *(
                variable.scatter_nd_update(cells, tf.broadcast_to(tf.cast(value, tf.int64), shape))
                for variable, value in zip(self.bookkeeping, values)
            )
        )

    def _enter(
        self, entries: _Entries, first: int, end: int, now: tf.Tensor, needed: list[tf.Operation]
    ) -> tuple[_Entries, tf.Operation]:
        """Give each new key a cell of its bucket: an empty cell, or else the cell that was unused for longest.

        If a bucket gets more keys in one update than it has cells, the last of these keys get no cell.

        Args:
          first, end: the range of the columns from which the cells are taken.
          now: int64 [], the version.
          needed: operations that run before the table is read.
        Returns:
          The entries with their new columns, -1 for a key without a cell, and the operation that writes them.
        """
        order = tf.argsort(entries.buckets, stable=True)
        ordered = tf.gather(entries.buckets, order)
        rank = tf.range(tf.size(order)) - tf.searchsorted(ordered, ordered)  # each key's rank in its bucket
        rank = tf.gather(rank, tf.math.invert_permutation(order))
        with tf.control_dependencies(needed):
            used = tf.gather(self.used, entries.buckets)[:, first:end]
        by_age = tf.argsort(used, axis=1, stable=True)
        column = tf.gather(by_age, tf.minimum(rank, end - first - 1), batch_dims=1)
        last_use = tf.gather(used, column, batch_dims=1)
        is_free = (rank < end - first) & (last_use < now)
        entries = entries._replace(columns=tf.where(is_free, first + tf.cast(column, tf.int64), -1))
        entering = entries.chosen(is_free)
        has_ended = tf.boolean_mask(last_use, is_free) != _NEVER
        if self.layout.expire_after is not None:
            has_ended &= now - tf.boolean_mask(last_use, is_free) <= self.layout.expire_after
        ended = tf.boolean_mask(entering.buckets, has_ended & (end == self.layout.ways))
        counted = self.ended.scatter_nd_add(tf.stack([ended, tf.zeros_like(ended)], 1), tf.ones_like(ended))
        with tf.control_dependencies([used]):
            return entries, tf.group(counted, self._write(entering, now, 1))

    def _begin(self, entries: _Entries) -> tf.Operation:
        """Set the rows of some entries to their initial values, and the slots of these rows to their first values."""
        indices = self._indices(entries)
        rows = self.rows.scatter_update(tf.IndexedSlices(self.layout.initial(entries.keys), indices))
        return tf.group(rows, self._rule.reset(indices))
