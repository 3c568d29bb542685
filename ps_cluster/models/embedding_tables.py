"""Manage a network's embedding tables whose rows are sent individually: a step gets only the rows of its batch.

    before the pull   the ids of the batch ──► distinct rows, sorted by the servers that have them
                      (`Tables.table_rows_of`)
    forward pass      each lookup takes its vectors from the rows that were pulled, not from the layer
                      (`Tables.replaced`)

A table is a large `keras.layers.Embedding` (see finding_tables.py). All tables of one width form a group. The rows of a
group lie end to end, and are numbered within the group. So a step looks up, pulls and changes the rows of all tables of
a group at once. A `DynamicEmbedding` is a group of its own, and its rows are identified by keys instead of numbers
(keyed_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.models.dynamic_embedding import DynamicEmbedding
from ps_cluster.models.keyed_rows import EMPTY, KeyedPart, KeyedTableLayout
from ps_cluster.models.rows import Rows

TableLayer: TypeAlias = keras.layers.Embedding | DynamicEmbedding
LookUp: TypeAlias = Callable[[TableLayer, tf.Tensor], tf.Tensor]
"""(layer, ids [...]) → vectors [..., width]: replaces the call of a table's layer."""


@dataclass(frozen=True)
class Table:
    """An embedding layer whose rows are pulled and pushed individually."""

    layer: TableLayer
    group: int  # the number of the table's group
    first: int  # the number of the table's first row within the group

    @property
    def rows(self) -> int:
        """The number of rows that the table has room for."""
        return self.keyed.capacity if self.keyed else int(self.layer.input_dim)

    @property
    def keyed(self) -> KeyedTableLayout | None:
        """The buckets and other properties of a dynamic embedding table; None if the layer is an `Embedding`."""
        return self.layer.layout if isinstance(self.layer, DynamicEmbedding) else None

    @property
    def width(self) -> int:
        return int(self.layer.output_dim)


class TableCall(NamedTuple):
    """A call of a table's layer.

    The ids, int64 [k], are numbers of the table's rows or, for a dynamic embedding table, keys.
    """

    table: Table
    ids: tf.Tensor


class Tables:
    """The tables of a network, in groups of equal width.

    Each dynamic embedding table is a group of its own. These groups come after all others.
    """

    def __init__(self, layers: Sequence[TableLayer] = ()):
        numbered = [layer for layer in layers if not isinstance(layer, DynamicEmbedding)]
        self.widths = list(dict.fromkeys(int(layer.output_dim) for layer in numbered))  # the width of each group
        self.tables: list[Table] = []  # in the order of the network's layers
        self.keyed: dict[int, DynamicEmbedding] = {}  # number of a group → its only table, a dynamic one
        rows = [0] * len(self.widths)
        for layer in layers:
            if isinstance(layer, DynamicEmbedding):
                self.keyed[len(self.widths)] = layer
                self.tables.append(Table(layer, len(self.widths), 0))
                self.widths.append(layer.output_dim)
            else:
                group = self.widths.index(int(layer.output_dim))
                self.tables.append(Table(layer, group, rows[group]))
                rows[group] += int(layer.input_dim)
        self._of_layer = {id(table.layer): table for table in self.tables}

    def __bool__(self) -> bool:
        return bool(self.tables)

    @property
    def size(self) -> int:
        """The number of weights in all tables."""
        return sum(table.rows * table.width for table in self.tables)

    @property
    def keyed_size(self) -> int:
        """The number of integers, such as keys, that a checkpoint stores to manage the rows of dynamic tables."""
        return sum(layer.layout.state_size for layer in self.keyed.values())

    def is_table(self, variable: keras.Variable) -> bool:
        return any(variable is table.layer.embeddings for table in self.tables)

    def take_values(self) -> tuple[np.ndarray, ...]:
        """Return the rows of each group, float32 [rows, width], and free the layers' variables, which no step reads."""
        sizes = [sum(table.rows for table in self.tables if table.group == group) for group in range(len(self.widths))]
        values = tuple(np.empty([rows, width], np.float32) for rows, width in zip(sizes, self.widths, strict=True))
        for table in self.tables:
            variable = table.layer.embeddings.value
            values[table.group][table.first : table.first + table.rows] = variable
            # Keras refers to the variable, so deleting it here would free nothing. It gets an empty value instead.
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros([0, table.width]))
        return values

    def keyed_parts(self) -> dict[int, KeyedPart]:
        """Return the initial content of the dynamic embedding tables: number of a group → content of its table."""
        return {group: KeyedPart(layer.layout, np.asarray(layer.keys.value)) for group, layer in self.keyed.items()}

    @contextmanager
    def replaced(self, look_up: LookUp) -> Iterator[None]:
        """Within the block, call `look_up` instead of the tables' layers. The block has to trace the network."""

        def call(layer: TableLayer, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
            return look_up(layer, ids)

        with ExitStack() as stack:
            for table in self.tables:
                own = table.layer.__dict__
                own["call"] = partial(call, table.layer)
                stack.callback(own.pop, "call")
            yield

    def recording(self, calls: list[TableCall], value: tf.Tensor | float = 0.0) -> LookUp:
        """Return a look-up function that appends each call to `calls`, and returns vectors filled with `value`."""

        def look_up(layer: TableLayer, ids: tf.Tensor) -> tf.Tensor:
            table = self._of_layer[id(layer)]
            flat = (
                layer.as_keys(ids) if isinstance(layer, DynamicEmbedding) else tf.reshape(tf.cast(ids, tf.int64), [-1])
            )
            calls.append(TableCall(table, flat))
            return self._shaped(tf.fill([tf.size(ids), table.width], tf.cast(value, layer.compute_dtype)), ids)

        return look_up

    def table_rows_of(self, calls: Sequence[TableCall], servers: int) -> Rows:
        """Return the distinct rows that the calls look up, sorted by server. A step with an invalid id fails."""
        ids, indices, sizes, counts = [], [], [], []
        for group in range(len(self.widths)):
            asked = [call for call in calls if call.table.group == group]
            of_calls = tf.stack([tf.size(call.ids) for call in asked])
            keyed = self.keyed.get(group)
            distinct, index = tf.unique(_numbered_in_group(asked, of_calls) if keyed is None else _checked_keys(asked))
            of_server = tf.cast((keyed.layout.bucket_of(distinct) if keyed else distinct) % servers, tf.int32)
            if servers > 1:
                order = tf.argsort(of_server, stable=True)
                distinct = tf.gather(distinct, order)
                index = tf.gather(tf.math.invert_permutation(order), index)
            ids.append(distinct)
            indices.append(index)
            sizes.append(of_calls)
            counts.append(tf.math.bincount(of_server, minlength=servers, maxlength=servers))
        return Rows(tuple(ids), tuple(indices), tuple(sizes), tuple(counts))

    def lookup_from(self, values: Sequence[tf.Tensor], rows: Rows) -> LookUp:
        """Return a look-up function that returns vectors from the pulled rows.

        `values`: the pulled rows of each group, [u, width]. The layers have to be called in the same order as in the
        forward pass from which `rows` was computed.
        """
        # All calls share one gather and one split, because the gradient of a slice would be as large as all vectors.
        vectors = [
            iter(tf.split(tf.gather(of_group, indices), sizes, num=sizes.shape[0]))
            for of_group, indices, sizes in zip(values, rows.indices, rows.sizes, strict=True)
        ]

        def look_up(layer: TableLayer, ids: tf.Tensor) -> tf.Tensor:
            found = next(vectors[self._of_layer[id(layer)].group])
            return self._shaped(tf.cast(found, layer.compute_dtype), ids)

        return look_up

    def _shaped(self, vectors: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Return the vectors [k, width] of k ids, reshaped to [..., width], where [...] is the shape of `ids`."""
        width = vectors.shape[-1]
        return tf.ensure_shape(tf.reshape(vectors, tf.concat([tf.shape(ids), [width]], 0)), [*ids.shape, width])


def _checked_keys(calls: Sequence[TableCall]) -> tf.Tensor:
    """Return the keys of all calls of one dynamic embedding table, int64 [k]. A step with a reserved key fails."""
    keys = tf.concat([call.ids for call in calls], 0)
    reserved = tf.boolean_mask(keys, tf.equal(keys, EMPTY))
    message = f"the DynamicEmbedding layer {calls[0].table.layer.name} got reserved keys:"
    inside = tf.raw_ops.Assert(condition=tf.equal(tf.size(reserved), 0), data=[message, reserved], summarize=5)
    with tf.control_dependencies([inside]):
        return tf.identity(keys)


def _numbered_in_group(calls: Sequence[TableCall], sizes: tf.Tensor) -> tf.Tensor:
    """Return the rows that the calls of a group look up, as row numbers within the group: int64 [k].

    `sizes`: the number of ids in each call. Their sum is k. A step with an id outside of its table fails. The ids of
    all calls are checked together, because a graph with a separate check for each of many tables takes seconds to
    build.
    """
    ids = tf.concat([call.ids for call in calls], 0)
    call_of = tf.searchsorted(tf.cumsum(sizes), tf.range(tf.size(ids)), side="right")
    rows, first = (
        tf.gather(tf.constant(numbers, tf.int64), call_of)
        for numbers in ([call.table.rows for call in calls], [call.table.first for call in calls])
    )
    outside = (ids < 0) | (ids >= rows)
    # The index of a call with ids outside of its table. Without any ids the maximum is negative, so 0 is used.
    wrong = tf.maximum(tf.reduce_max(tf.where(outside, call_of, 0)), 0)
    messages = [
        f"the Embedding layer {call.table.layer.name} has rows 0 to {call.table.rows - 1}, but got the ids:"
        for call in calls
    ]
    message = [tf.gather(tf.constant(messages), wrong), tf.boolean_mask(ids, outside & tf.equal(call_of, wrong))]
    inside = tf.raw_ops.Assert(condition=tf.reduce_all(~outside), data=message, summarize=5)
    with tf.control_dependencies([inside]):
        return ids + first


NO_TABLES = Tables()
