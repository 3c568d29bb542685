"""Update rules for the rows of embedding tables: they change only the rows that have a gradient.

A rule whose update of a weight with gradient 0 does nothing (sgd, adagrad) gives the same weights as on a whole table. So does
ftrl from the first gradient of a row on. Before it, the row keeps its initial weights, which become 0 in a whole table. Adam is
"lazy" here: without a gradient, the moments of a row stay as they are and the row does not move. Its bias correction counts all
updates, as that of a whole table does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RULES, RuleSettings


class RowUpdate(NamedTuple):
    """An update of some rows.

    Attributes:
      places: int64 [u], the distinct numbers of the rows.
      gradient: float32 [u, width].
      learning_rate: float32 [].
      updates_before: int64 [], the number of updates applied to this shard before.
      share: float32 [], as for `UpdateRule.apply`; None means 1.
    """

    places: tf.Tensor
    gradient: tf.Tensor
    learning_rate: tf.Tensor
    updates_before: tf.Tensor
    share: tf.Tensor | None = None


class RowRule(ABC):
    """The optimizer of a table's rows: its slots, and the operations that apply gradients. Create it on the shard's device.

    Attributes:
      slots: name → float32 [rows, width]. They are those that the rule has for whole vectors.
    """

    def __init__(self, settings: RuleSettings, rows: tf.Variable):
        """Create the slots. `rows`: float32 [rows, width]."""
        self._settings: Any = settings
        self._rows = rows
        self._first = RULES[settings.rule].update.first_values(settings)
        self.slots = {name: tf.Variable(tf.fill(rows.shape, one), trainable=False) for name, one in self._first.items()}

    def reset(self, places: tf.Tensor) -> tf.Operation:
        """Give the slots of some rows their first values. `places`: int64 [u]."""
        shape = [tf.size(places), self._rows.shape[1]]
        return tf.group(
            *(
                slot.scatter_update(tf.IndexedSlices(tf.fill(shape, self._first[name]), places))
                for name, slot in self.slots.items()
            )
        )

    @abstractmethod
    def apply(self, update: RowUpdate) -> tf.Operation:
        """Change some rows and their slots."""
