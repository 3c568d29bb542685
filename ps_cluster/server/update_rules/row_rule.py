"""Update rules for the rows of embedding tables: they change only the rows of which a gradient came.

A rule whose update of a weight with gradient 0 does nothing (sgd, adagrad, ftrl) gives the same weights as on a whole table.
Adam is "lazy" here: without a gradient, the moments of a row stay as they are and the row does not move. Its bias correction
counts all updates, as that of a whole table does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RuleSettings
from ps_cluster.server.update_rules.rule import times


class RowRule(ABC):
    """The optimizer of a table's rows: its slots, and the operations that apply gradients. Create it on the shard's device.

    Attributes:
      slots: name → float32 [rows, width].
    """

    def __init__(self, settings: RuleSettings, rows: tf.Variable):
        """Create the slots. `rows`: float32 [rows, width]."""
        self._settings: Any = settings
        self._rows = rows
        self.slots = {
            name: tf.Variable(tf.fill(rows.shape, tf.constant(start, tf.float32)), trainable=False)
            for name, start in self.slot_starts.items()
        }

    @property
    def slot_starts(self) -> Mapping[str, float]:
        """The names of the slots, which are those of the rule for whole vectors, and the value with which each begins."""
        return {}

    @abstractmethod
    def apply(
        self,
        places: tf.Tensor,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        updates_before: tf.Tensor,
        share: tf.Tensor | None,
    ) -> tf.Operation:
        """Apply gradients to some rows.

        Args:
          places: int64 [u], the distinct numbers of the rows.
          gradient: float32 [u, width].
          learning_rate: float32 [].
          updates_before: int64 [], the number of updates applied to this shard before.
          share: float32 [], as for `UpdateRule.apply`; None means 1.
        """


class SgdRows(RowRule):
    """Stochastic gradient descent: w becomes w - learning rate x gradient."""

    def apply(
        self,
        places: tf.Tensor,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        updates_before: tf.Tensor,
        share: tf.Tensor | None,
    ) -> tf.Operation:
        return self._rows.scatter_sub(tf.IndexedSlices(times(share, learning_rate * gradient), places))


class LazyAdamRows(RowRule):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) on the rows that have a gradient."""

    @property
    def slot_starts(self) -> Mapping[str, float]:
        return {"mean": 0.0, "variance": 0.0}

    def apply(
        self,
        places: tf.Tensor,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        updates_before: tf.Tensor,
        share: tf.Tensor | None,
    ) -> tf.Operation:
        settings, count = self._settings, tf.cast(updates_before + 1, tf.float64)
        correction = tf.sqrt(1 - settings.beta_2**count) / (1 - settings.momentum**count)
        mean, variance = (tf.gather(self.slots[name], places) for name in ("mean", "variance"))
        mean += (1 - settings.momentum) * (times(share, gradient) - mean)
        variance += (1 - settings.beta_2) * (gradient * gradient - variance)
        step = learning_rate * tf.cast(correction, tf.float32) * mean / (tf.sqrt(variance) + settings.epsilon)
        return tf.group(
            self.slots["mean"].scatter_update(tf.IndexedSlices(mean, places)),
            self.slots["variance"].scatter_update(tf.IndexedSlices(variance, places)),
            self._rows.scatter_sub(tf.IndexedSlices(step, places)),
        )
