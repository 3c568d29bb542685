"""Keep a server's part of the embedding tables: of k servers, server i has each row whose number modulo k is i.

Tables of the same width form a group, whose rows are numbered consecutively (models/embedding_tables.py). Consecutive
rows are on different servers. So the rows that are looked up most often, which mostly have the lowest numbers, are
spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RULES, RuleSettings
from ps_cluster.server.arrangement import BLOCK_NUMBERS
from ps_cluster.server.update_rules.rule import Gradient


class PushedRows(NamedTuple):
    """The gradients of rows of embedding tables in a push.

    Each field has a tensor for each group of tables. It is empty if there are no tables.
    """

    indices: Sequence[tf.Tensor] = ()  # int64 [u], the distinct indices of the rows in the shard's part, or their keys
    gradients: Sequence[tf.Tensor] = ()  # [u * width], in the wire's dtype


NOTHING_PUSHED = PushedRows()


class TableShard:
    """Keeps a server's rows of a group of embedding tables, which have the same width.

    Create it on the shard's device, and use it in the shard's critical section.

    Attributes:
      rows: float32 [rows, width].
      changed: bool [rows], whether a row or its slots were changed since the last full state (training/saver.py).
    """

    def __init__(self, values: np.ndarray, settings: RuleSettings):
        """Create the variables. `values`: float32 [rows, width]."""
        self.rows = tf.Variable(tf.zeros(values.shape), trainable=False)
        rows = max(1, BLOCK_NUMBERS // values.shape[1])
        for first in range(0, len(values), rows):  # in blocks, because TensorFlow makes several copies of what it sends
            assign_rows(self.rows, first, values[first : first + rows])
        row_update = RULES[settings.rule].row_update
        assert row_update is not None, f"optimizer rule {settings.rule} can't update single rows of embedding tables"
        self._rule = row_update(settings, self.rows)
        self.changed = tf.Variable(tf.zeros([len(values)], tf.bool), trainable=False)
        self._sum: tf.Variable | None = None

    def indices_or_keys(self, ids: tf.Tensor, servers: int) -> tf.Tensor:
        """Return the numbers that identify some rows in messages, int64 [u].

        They are the rows' indices in the server's part of the table. In a dynamic embedding table, they are the keys.

        Args:
          ids: int64 [u], the numbers of the rows in the group, or their keys.
        """
        return ids // servers

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])

    @property
    def size(self) -> int:
        """The number of weights, rows * width."""
        return int(self.rows.shape.num_elements())

    @property
    def slots(self) -> dict[str, tf.Variable]:
        """The slots of the rows, name → float32 [rows, width].

        After a call of `keep_sum` they include "sum", the sum of the gradients that the rows got in the open round.
        """
        return self._rule.slots | ({} if self._sum is None else {"sum": self._sum})

    def rows_to_update(self, wanted: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the indices of the rows that a push changes, int64 [v], and their gradients, [v * width].

        Args:
          wanted: int64 [u], the distinct indices or keys in the push. gradient: [u * width].
        """
        return wanted, gradient

    def keys_at(self, indices: tf.Tensor) -> tf.Tensor:
        """Return the keys of the rows at some indices, int64 [u]; int64 [0] if rows have no keys."""
        return tf.zeros([0], tf.int64)

    def read(self, wanted: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Return some rows, concatenated, [u * width] in `dtype`. `wanted`: their indices or keys, int64 [u]."""
        return tf.reshape(tf.cast(tf.gather(self.rows, wanted), dtype), [-1])

    # If an update is the mean of several pushes, their gradients are summed up until the update.

    def keep_sum(self) -> None:
        """Create the variables in which the gradients of a round are summed up. Call it before any graph uses them."""
        with tf.device(self.rows.device):
            self._sum = tf.Variable(tf.zeros_like(self.rows), trainable=False)
            self._touched = tf.Variable(_as_text(tf.zeros([0], tf.int64)), trainable=False)  # indices, with repetitions

    def add_to_sum(self, indices: tf.Tensor, gradient: tf.Tensor) -> tf.Operation:
        """Add the gradients of some rows, [u * width], to the sum. `indices`: int64 [u]. Call `keep_sum` before."""
        assert self._sum is not None
        touched = tf.concat([tf.io.parse_tensor(self._touched.read_value(), tf.int64), indices], 0)
        return tf.group(
            self._sum.scatter_add(tf.IndexedSlices(self._by_row(gradient), indices)),
            self._touched.assign(_as_text(touched), read_value=False),
            self._note_change(indices),
        )

    def summed(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the rows that got a gradient in this round: their indices, int64 [u], and their sums, [u * width]."""
        indices, _ = tf.unique(tf.io.parse_tensor(self._touched.read_value(), tf.int64))
        return indices, tf.reshape(tf.gather(self._sum, indices), [-1])

    def clear_sum(self, indices: tf.Tensor) -> tf.Operation:
        """Set the sums of all rows to 0. `indices`: int64 [u], the indices that `summed` returned."""
        assert self._sum is not None
        zeros = tf.zeros([tf.size(indices), self.width])
        return tf.group(
            self._sum.scatter_update(tf.IndexedSlices(zeros, indices)),
            self._touched.assign(_as_text(tf.zeros([0], tf.int64)), read_value=False),
        )

    def after_restore(self) -> None:
        """Find out which rows have a restored sum that is not 0, so that `summed` returns them.

        Checkpoints contain the sums, but not the indices of these rows.
        """
        if self._sum is not None:
            with tf.device(self.rows.device):
                touched = tf.where(tf.reduce_any(self._sum != 0, axis=1))
                self._touched.assign(_as_text(tf.reshape(touched, [-1])))

    def apply(self, indices: tf.Tensor, gradient: Gradient) -> tf.Operation:
        """Change some rows and their slots, like `RowRule.apply`.

        The gradient's values may also have the shape [u * width], and the dtype in which they were sent.
        """
        applied = self._rule.apply(indices, gradient._replace(values=self._by_row(gradient.values)))
        return tf.group(applied, self._note_change(indices))

    def _note_change(self, indices: tf.Tensor) -> tf.Operation:
        return self.changed.scatter_update(tf.IndexedSlices(tf.fill([tf.size(indices)], True), indices))

    def _by_row(self, gradient: tf.Tensor) -> tf.Tensor:
        """Reshape the concatenated gradients of rows, [u * width], to float32 [u, width]."""
        return tf.reshape(tf.cast(gradient, tf.float32), [-1, self.width])


def assign_rows(variable: tf.Variable, first: int, values: np.ndarray) -> None:
    """Assign `values` [k, width] to the rows of a variable from row `first` on.

    Unlike `variable[first:end].assign(values)`, this does not read the old rows.
    """
    rows, width = values.shape
    with tf.device(variable.device):
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.handle, begin=[first, 0], end=[first + rows, width], strides=[1, 1], value=values
        )


def _as_text(indices: tf.Tensor) -> tf.Tensor:
    """Serialise a vector to a string [], to keep it in a variable of fixed shape although its length varies.

    In a graph on several machines, TensorFlow needs variables of fixed shape.
    """
    return tf.io.serialize_tensor(indices)
