"""The base class of update rules for rows of embedding tables. These rules change only rows that have a gradient.

With sgd and adagrad, a weight whose gradient is 0 does not change, so the result is the same as if the rule changed all
rows. With ftrl it is the same from the first gradient of a row on. Before that, the row keeps its initial weights here,
whereas ftrl on all rows would set them to 0. Adam, also as a part of muon_adam, is "lazy" here: without a gradient, a row
and its moments do not change. The bias correction counts all updates, also those without a gradient for the row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic

from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RULES, OwnSettings
from ps_cluster.server.update_rules.rule import Gradient


class RowRule(ABC, Generic[OwnSettings]):
    """The optimizer of a table's rows: slots, and operations that apply gradients. Create it on the shard's device.

    Attributes:
      settings, rows: as for the constructor.
      slots: name → float32 [rows, width]. The names are the same as for whole vectors.
    """

    def __init__(self, settings: OwnSettings, rows: tf.Variable):
        """Create the slots. `rows`: float32 [rows, width]."""
        self.settings = settings
        self.rows = rows
        self._first = RULES[settings.rule].update.first_values(settings)
        self.slots = {name: tf.Variable(tf.fill(rows.shape, one), trainable=False) for name, one in self._first.items()}

    def reset(self, indices: tf.Tensor) -> tf.Operation:
        """Set the slots of some rows to their first values. `indices`: int64 [u]."""
        shape = [tf.size(indices), self.rows.shape[1]]
        return tf.group(
            *(
                slot.scatter_update(tf.IndexedSlices(tf.fill(shape, self._first[name]), indices))
                for name, slot in self.slots.items()
            )
        )

    @abstractmethod
    def apply(self, indices: tf.Tensor, gradient: Gradient) -> tf.Operation:
        """Change some rows and their slots. `indices`: int64 [u], the distinct numbers of the rows."""


class RowsByFormula(RowRule[Any]):
    """Changes rows by `UpdateRule.formula` of the rule that the settings name."""

    def apply(self, indices: tf.Tensor, gradient: Gradient) -> tf.Operation:
        slots = {name: tf.gather(slot, indices) for name, slot in self.slots.items()}
        step = RULES[self.settings.rule].update.formula(self.settings, gradient, slots)
        changed = [self.slots[name].scatter_update(tf.IndexedSlices(new, indices)) for name, new in step.slots.items()]
        return tf.group(*changed, self.rows.scatter_sub(tf.IndexedSlices(step.values, indices)))
