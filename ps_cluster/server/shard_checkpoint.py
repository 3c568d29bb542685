"""Read a shard's state for snapshots and checkpoints, and restore it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ps_cluster.config.lazy import graph, tf
from ps_cluster.runs.checkpoint_arrays import ACCEPTED_STEPS, BY_WEIGHT, COUNTERS, KEYED, WEIGHTS, Shape, form_of
from ps_cluster.server.keyed_tables import KeyedTableShard
from ps_cluster.server.ordering import after
from ps_cluster.server.table_shard import assign_rows
from ps_cluster.server.vector_on_server import ChangedRows, Extent, VectorOnServer

if TYPE_CHECKING:  # a shard imports ShardCheckpoint
    from ps_cluster.server.shard import ParameterShard


class ShardState(NamedTuple):
    """The state of a shard at a single version, and new rows of its ledger."""

    arrays: dict[str, tf.Tensor]  # the arrays of a checkpoint, without rows of embedding tables
    rows: dict[str, list[tf.Tensor]]  # a vector's name → for each table group, the vector's numbers for the rows
    changed: list[tf.Tensor]  # for each group, the indices of the rows in `rows`, int64 [k]; [] if `rows` has all rows
    ledger_rows: tf.Tensor  # float64 [k, columns]


class ShardSnapshot(NamedTuple):
    """A `ShardState` as the chief gets it. Vectors that include rows of tables stay on the server until read."""

    arrays: dict[str, np.ndarray | VectorOnServer]  # the arrays of a checkpoint
    counts: np.ndarray  # int64 [len(COUNTS)]; `arrays` contains these too
    ledger_rows: np.ndarray  # float64 [k, columns]


class ShardCheckpoint:
    """Reads the state of one shard at a single version, and restores it.

    The arrays are those of `ParameterShard.state`, the counters of the ledger, and the steps that the ledger has
    accepted. In a vector with a number for each weight, the numbers for the rows of embedding tables come last.
    """

    def __init__(self, shard: ParameterShard):
        self._shard = shard

    @property
    def bytes(self) -> int:
        """The size in bytes of the shard's arrays in a checkpoint."""
        variables = [
            *self._shard.state.values(),
            *(table.rows for table in self._shard.tables for _ in self._by_weight),
        ]
        variables += [variable for table in self._keyed for variable in table.bookkeeping]
        return sum(variable.dtype.size * variable.shape.num_elements() for variable in variables)

    @property
    def _keyed(self) -> list[KeyedTableShard]:
        return [table for table in self._shard.tables if isinstance(table, KeyedTableShard)]

    @property
    def _keyed_sizes(self) -> list[int]:
        """For each dynamic embedding table, the number of values in a checkpoint, besides rows and slots."""
        return [sum(variable.shape.num_elements() for variable in table.bookkeeping) for table in self._keyed]

    @graph
    def changed_weights(self) -> tf.Tensor:
        """Return how many weights a saved state would hold now if it left out unchanged table rows, int64 [].

        Takes no lock.
        """
        with tf.device(self._shard.device):
            in_tables = [table.width * tf.math.count_nonzero(table.changed) for table in self._shard.tables]
            return self._shard.length + tf.add_n(in_tables)

    @cached_property
    def _readers(self) -> dict[Extent, Callable[[tf.Tensor, tf.Tensor], ShardState]]:
        """The graph of `_read_all` for each `Extent`: all rows of embedding tables, or only changed rows."""
        return {extent: tf.function(partial(self._read_all, extent), autograph=False) for extent in Extent}

    def _read_all(self, extent: Extent, first: tf.Tensor, closed: tf.Tensor) -> ShardState:
        def read() -> ShardState:
            arrays = {name: variable.read_value() for name, variable in self._shard.state.items()}
            changed = [tf.where(table.changed)[:, 0] for table in self._shard.tables if extent is Extent.CHANGED]
            rows = {
                name: [
                    tf.zeros([0]) if one is None else tf.gather(one, changed[group]) if changed else one.read_value()
                    for group, one in enumerate(self._rows_in_state(name))
                ]
                for name in (self._by_weight if self._shard.tables else ())
            }
            arrays |= {ACCEPTED_STEPS: self._shard.ledger.accepted_steps(closed), COUNTERS: self._shard.counts()}
            if keyed := self._keyed:
                arrays[KEYED] = tf.concat([tf.reshape(table.state(), [-1]) for table in keyed], 0)
            noted = [
                table.changed.assign(tf.zeros_like(table.changed), read_value=False)
                for table in self._shard.tables
                if extent is Extent.FULL
            ]
            return ShardState(arrays, rows, changed, after(noted, self._shard.ledger.read(first)))

        with tf.device(self._shard.device):
            state: ShardState = self._shard.section.execute(read)
            return state

    def snapshot(self, first: int, closed: int, extent: Extent = Extent.WHOLE) -> ShardSnapshot:
        """Return the state at one version, and the ledger's rows from row number `first` on.

        With embedding tables, a vector with a number for each weight is a `VectorOnServer`.

        Args:
          closed: a step id. Each step below it was accepted, or will never be accepted.
        """
        with tf.device(self._shard.device):  # otherwise the results would be sent to this process immediately
            read = self._readers[extent if self._shard.tables else Extent.WHOLE]
            state = read(tf.constant(first, tf.int64), tf.constant(closed, tf.int64))
        found = {name: array.numpy() for name, array in state.arrays.items()}
        sizes, changes = [table.size for table in self._shard.tables], None
        if state.changed:
            widths = [table.width for table in self._shard.tables]
            changes = ChangedRows(self._shard.length, [numbers.numpy() for numbers in state.changed], widths, sizes)
            sizes = changes.changed_sizes
        of_server = {
            name: VectorOnServer(found[name], copies, sizes, self._shard.device, changes)
            for name, copies in state.rows.items()
        }
        return ShardSnapshot({**found, **of_server}, found[COUNTERS], state.ledger_rows.numpy())

    def _rows_in_state(self, name: str) -> list[tf.Variable | None]:
        """Return, for each group of embedding tables, the variable with the weights or a slot of the rows.

        The variables are float32 [rows, width]. If the rows of a group do not have the slot, there is None instead of
        a variable, and a checkpoint has zeros for these rows.

        Args:
          name: the name of the weights or of the slot in `ParameterShard.state`.
        """
        if name == WEIGHTS:
            return [table.rows for table in self._shard.tables]
        slots = [
            {BY_WEIGHT.array_name(slot): rows for slot, rows in table.slots.items()} for table in self._shard.tables
        ]
        return [of_table.get(name) for of_table in slots]

    @property
    def _by_weight(self) -> set[str]:
        """The names of those vectors in `state` that have a number for each weight."""
        return {name for name in self._shard.state if form_of(name).has_number_per_weight}

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each array of a snapshot, by name. For the arrays of the ledger, () is a placeholder."""
        rows = sum(table.size for table in self._shard.tables)
        found = {name: tuple(variable.shape) for name, variable in self._shard.state.items()}
        found |= {name: (*found[name][:-1], found[name][-1] + rows) for name in self._by_weight}
        if self._keyed:
            found[KEYED] = (sum(self._keyed_sizes),)
        return found | {ACCEPTED_STEPS: (), COUNTERS: ()}

    def restore_rows(self, name: str, place: int, values: np.ndarray) -> None:
        """Restore the numbers that a vector has for some rows of an embedding table.

        Args:
          name: the name of the vector in `state`.
          place: the position of the first number of `values` in the vector. It is at least `ParameterShard.length`,
            because table rows come last.
          values: float32 [k * width], whole rows of one table.
        """
        place -= self._shard.length
        for table, rows in zip(self._shard.tables, self._rows_in_state(name), strict=True):
            if 0 <= place < table.size and rows is not None:
                assign_rows(rows, place // table.width, values.reshape(-1, table.width))
            place -= table.size

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore a snapshot, except rows of tables, which `restore_rows` restores.

        Call it before any worker pulls or pushes.
        """
        for name, variable in self._shard.state.items():
            has_rows = form_of(name).has_row_per_worker(variable.shape.rank)
            variable.assign(self._for_workers(name, variable, state) if has_rows else state[name])
        for table in self._shard.tables:
            table.after_restore()
        if keyed := self._keyed:
            for table, part in zip(keyed, np.split(state[KEYED], np.cumsum(self._keyed_sizes)[:-1]), strict=True):
                table.restore(part)
        self._shard.ledger.restore(state[ACCEPTED_STEPS])
        for counter, count in zip(self._shard.counters, state[COUNTERS], strict=True):
            counter.assign(count)
        self._shard.history.restart(self._shard.version)

    def _for_workers(self, name: str, variable: tf.Variable, state: dict[str, np.ndarray]) -> np.ndarray:
        """Return a saved array with a row or a number for each present worker. See `Form.has_row_per_worker`.

        The number of workers may have changed since the snapshot.
        """
        saved, workers = state[name], variable.shape[0]
        if workers <= len(saved):
            return saved[:workers]
        row = self._shard.row_of_newcomer(state) if form_of(name).has_number_per_weight else None
        if row is not None:
            return np.concatenate([saved, np.tile(row, [workers - len(saved), 1])])
        with tf.device(self._shard.device):  # otherwise the whole variable would be sent to this process
            first_values = variable[len(saved) :]
        return np.concatenate([saved, first_values.numpy()])
