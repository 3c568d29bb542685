"""Keep the rows of embedding tables that a sampled update reads and changes.

The evaluator computes such an update again, to check it. `UpdateSamples` keeps all other values of the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.runs.update_samples import SampledShard
from ps_cluster.server.keyed_tables import KeyedTableShard
from ps_cluster.server.table_shard import TableShard

V = TypeVar("V")


class RowValues(NamedTuple, Generic[V]):
    """The rows of one group of embedding tables that one sampled update reads or changes, and their slots.

    V is the type of the fields: variables on the server, their values, or their dtypes. A row is identified by its
    index, or by its key in a dynamic embedding table (server/table_shard.py). The rows that are pulled may differ from
    the rows that are pushed. In the shapes below, u is the number of rows. The rows of an array [u * width] lie end to end.
    """

    given_indices: V  # int64 [u], the indices or keys of the rows that the worker gets
    given: V  # float32 [u * width], these rows as the worker gets them
    at_pull: V  # float32 [u * width], these rows as they are in the table at the pull
    indices: V  # int64 [u], the indices of the rows that the update changes
    keys: V  # int64 [u], the keys of these rows
    gradient: V  # float32 [u * width], the gradient of these rows, as received
    before: V  # float32 [1 + slots, u * width], the rows and slots before the update
    after: V  # float32 [1 + slots, u * width], the rows and slots after the update


_DTYPES = RowValues("int64", "float32", "float32", "int64", "int64", "float32", "float32", "float32")


class KeptRows:
    """Keeps the rows of a group of embedding tables that one sampled update reads and changes.

    Create it on the shard's device.
    """

    def __init__(self, table: TableShard):
        self._table = table
        self._slots = sorted(table.slots)
        # The tensors are serialised, because the number of rows differs from step to step. TensorFlow 2.21 aborts the
        # process of a worker whose graph has a remote variable of unknown shape.
        self._kept = RowValues(*(tf.Variable("", trainable=False) for _ in _DTYPES))

    def keep_given(self, indices: tf.Tensor, rows: tf.Tensor) -> tf.Operation:
        """Keep the rows that a pull returns and, to check the pull, the same rows as they are in the table.

        Args:
          indices: int64 [u], the indices or keys of the rows. rows: [u * width].
        """
        return tf.group(
            _keep(self._kept.given_indices, indices),
            _keep(self._kept.given, tf.cast(rows, tf.float32)),
            _keep(self._kept.at_pull, self._in_table(indices)),
        )

    def _in_table(self, indices: tf.Tensor) -> tf.Tensor:
        """Return rows as they are in the table, float32 [u * width]. `indices`: their indices or keys, int64 [u].

        A pull reads the rows with `TableShard.read`. This method does not call it, so that the comparison of both
        results (evaluation/recomputation.py) can find a mistake in `read`. A dynamic embedding table is an exception:
        only its method `read` finds the row of a key, so the comparison can't find a mistake in that method.
        """
        if isinstance(self._table, KeyedTableShard):
            return self._table.read(indices, tf.float32)
        return tf.reshape(tf.gather(self._table.rows, indices), [-1])

    def keep_before(self, indices: tf.Tensor, gradient: tf.Tensor) -> tf.Operation:
        """Keep the gradient of some rows as received, [u * width], and the rows and their slots before the update."""
        return tf.group(
            _keep(self._kept.indices, indices),
            _keep(self._kept.keys, self._table.keys_at(indices)),
            _keep(self._kept.gradient, tf.cast(gradient, tf.float32)),
            _keep(self._kept.before, self._now(indices)),
        )

    def keep_after(self) -> tf.Operation:
        indices = tf.io.parse_tensor(self._kept.indices.read_value(), tf.int64)
        return _keep(self._kept.after, self._now(indices))

    def _now(self, indices: tf.Tensor) -> tf.Tensor:
        """Return the current rows and slots at some indices, float32 [1 + slots, u * width]."""
        variables = [self._table.rows, *(self._table.slots[name] for name in self._slots)]
        return tf.stack([tf.reshape(tf.gather(variable, indices), [-1]) for variable in variables])

    def read(self) -> RowValues[tf.Tensor]:
        """Return everything that is kept, as serialised tensors, string [] each. `add_to_record` takes the result."""
        return RowValues(*(variable.read_value() for variable in self._kept))

    def add_to_record(self, shard: SampledShard, group: int, first: int, values: RowValues[tf.Tensor]) -> SampledShard:
        """Return `shard`, the record of a sampled update, with the kept rows added.

        Args:
          group: the index of the group of tables.
          first: the position of the group's first weight in the shard's vectors.
          values: the result of `read`.
        """
        kept = RowValues[np.ndarray](
            *(tf.io.parse_tensor(value.numpy(), dtype).numpy() for value, dtype in zip(values, _DTYPES, strict=True))
        )
        given_indices, given, at_pull = kept.given_indices, kept.given, kept.at_pull
        keyed = dict(shard.keyed)
        if isinstance(self._table, KeyedTableShard):
            # The proof compares only those pulled rows that are in the table at the time of the push.
            index_of = dict(zip(kept.keys.tolist(), kept.indices.tolist(), strict=True))
            at_push = np.array([index_of.get(key, -1) for key in given_indices.tolist()], np.int64)
            in_table = np.where(at_push < 0, -1, self._table.indices_in_table(at_push))
            keyed |= {f"{group}_keys": given_indices, f"{group}_places": in_table, f"{group}_given": given}
            has_row, given_indices = np.repeat(at_push >= 0, self._table.width), at_push[at_push >= 0]
            given, at_pull = given[has_row], at_pull[has_row]

        def positions(rows: np.ndarray) -> np.ndarray:
            width = self._table.width
            found: np.ndarray = (first + rows[:, None] * width + np.arange(width)).ravel()
            return found

        def continued(arrays: Mapping[str, np.ndarray], rows_and_slots: np.ndarray) -> dict[str, np.ndarray]:
            rows_by_name = dict(zip(["weights", *self._slots], rows_and_slots))
            zeros = np.zeros(len(kept.gradient), np.float32)  # for slots that rows don't have
            return {
                name: array if len(array) == 1 else np.concatenate([array, rows_by_name.get(name, zeros)])
                for name, array in arrays.items()
            }

        return replace(
            shard,
            positions=np.concatenate([shard.positions, positions(kept.indices)]),
            given=np.concatenate([shard.given, given]),
            given_positions=np.concatenate([shard.given_positions, positions(given_indices)]),
            rows_at_pull=np.concatenate([shard.rows_at_pull, at_pull]),
            gradient=np.concatenate([shard.gradient, kept.gradient]),
            keyed=keyed,
            before=continued(shard.before, kept.before),
            after=continued(shard.after, kept.after),
        )


def _keep(variable: tf.Variable, value: tf.Tensor) -> tf.Operation:
    return variable.assign(tf.io.serialize_tensor(value), read_value=False)
