"""A server's part of the embedding tables: the rows whose number, modulo the number of servers, is the server's index.

Tables of one width are a group, whose rows are numbered through (models/tables.py). Consecutive rows are on different servers.
So the rows that are looked up most often, which mostly have the lowest numbers, are spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RULES, RuleSettings


class PushedRows(NamedTuple):
    """The gradients of rows in a push, or none. Each field has a tensor for each group.

    Attributes:
      places: int64 [u], the distinct places of the rows in the shard's part of the group.
      gradients: [u x width], in the wire's dtype.
    """

    places: Sequence[tf.Tensor] = ()
    gradients: Sequence[tf.Tensor] = ()


NOTHING_PUSHED = PushedRows()


class TableShard:
    """A server's rows of a group of tables. Create it on the shard's device, and use it in the shard's critical section.

    Attributes:
      rows: float32 [rows, width].
    """

    def __init__(self, values: np.ndarray, settings: RuleSettings):
        """Create the variables. `values`: float32 [rows, width]."""
        self.rows = tf.Variable(values, trainable=False)
        kind = RULES[settings.rule].row_update
        assert kind is not None, "see training/table_limits.py"
        self._rule = kind(settings, self.rows)

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])

    @property
    def size(self) -> int:
        """The number of weights, rows x width."""
        return int(self.rows.shape.num_elements())

    @property
    def slots(self) -> dict[str, tf.Variable]:
        """The slots of the rows, name → float32 [rows, width]."""
        return self._rule.slots

    def read(self, places: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Return some rows, end to end, [u x width] in `dtype`. `places`: int64 [u]."""
        return tf.reshape(tf.cast(tf.gather(self.rows, places), dtype), [-1])

    def apply(
        self,
        places: tf.Tensor,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        updates_before: tf.Tensor,
        share: tf.Tensor | None,
    ) -> tf.Operation:
        """Apply the gradients of some rows, [u x width]. The other arguments are as for `RowRule.apply`."""
        of_rows = tf.reshape(tf.cast(gradient, tf.float32), [-1, self.width])
        return self._rule.apply(places, of_rows, learning_rate, updates_before, share)
