"""Optimizer rule sgd: plain stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings, Values
from ps_cluster.server.update_rules.row_rule import RowsByFormula
from ps_cluster.server.update_rules.rule import Gradient, Step, UpdateRule, times


class SgdUpdate(UpdateRule[RuleSettings]):
    """Plain SGD: w -= learning_rate * g."""

    def change(self, gradient: Gradient) -> tf.Operation:
        # The step is linear in the gradient, so scale and factors may multiply the gradient.
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=self.weights.handle,
            alpha=gradient.learning_rate,
            delta=times(self.factors, gradient.scaled),
            use_locking=True,
        )

    @classmethod
    def formula(cls, settings: RuleSettings, gradient: Gradient, slots: Mapping[str, tf.Tensor]) -> Step:
        return Step(times(gradient.scale, gradient.learning_rate * gradient.values), {})


class Sgd(OptimizerRule[RuleSettings]):
    name = "sgd"
    update = SgdUpdate
    row_update = RowsByFormula

    def of_keras(self, kind: type[keras.Optimizer], values: Values) -> Values | None:
        return {} if kind is keras.optimizers.SGD and not values["momentum"] else None

    def equation(self, settings: RuleSettings, parts: UpdateParts) -> Slots:
        """Return w - learning_rate * g."""
        return {"weights": parts.decayed_weights - parts.learning_rate * parts.factors * parts.scaled_gradient}
