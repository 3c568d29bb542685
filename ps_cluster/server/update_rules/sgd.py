"""Optimizer rule sgd: plain stochastic gradient descent."""

from __future__ import annotations

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings
from ps_cluster.server.update_rules.row_rule import RowRule, RowUpdate
from ps_cluster.server.update_rules.rule import LinearUpdate, times


class SgdUpdate(LinearUpdate[RuleSettings]):
    """Plain SGD: w -= learning_rate * g."""

    def _step(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=self._weights.handle, alpha=learning_rate, delta=gradient, use_locking=True
        )


class SgdRows(RowRule[RuleSettings]):
    """Plain SGD on the rows that have a gradient: w -= learning_rate * g."""

    def apply(self, update: RowUpdate) -> tf.Operation:
        step = times(update.gradient_scale, update.learning_rate * update.gradient)
        return self._rows.scatter_sub(tf.IndexedSlices(step, update.indices))


class Sgd(OptimizerRule[RuleSettings]):
    name = "sgd"
    update = SgdUpdate
    row_update = SgdRows

    def equation(self, settings: RuleSettings, parts: UpdateParts) -> Slots:
        """Return w - learning_rate * g."""
        return {"weights": parts.decayed_weights - parts.learning_rate * parts.factors * parts.scaled_gradient}
