"""Optimizer rule momentum: SGD with momentum."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings, Values
from ps_cluster.config.setting_types import Momentum
from ps_cluster.server.update_rules.rule import Gradient, UpdateRule, times


class MomentumSettings(RuleSettings):
    momentum: Momentum = Field(
        default=0.9, description="The momentum. Asynchronous training has the effect of more momentum."
    )

    @property
    def slowest_decay(self) -> float:
        return self.momentum


class MomentumUpdate(UpdateRule[MomentumSettings]):
    """SGD with momentum: v = momentum * v - learning_rate * g; w += v."""

    slot_names = ("momentum",)
    looks_ahead = False

    def change(self, gradient: Gradient) -> tf.Operation:
        # The step is linear in the gradient, so scale and factors may multiply the gradient.
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=self.weights.handle,
            accum=self.slots["momentum"].handle,
            lr=gradient.learning_rate,
            grad=times(self.factors, gradient.scaled),
            momentum=self.settings.momentum,
            use_nesterov=self.looks_ahead,
            use_locking=True,
        )


class WithMomentum(OptimizerRule[MomentumSettings]):
    name = "momentum"
    Settings = MomentumSettings
    staleness_method_of_compile = "gap_aware"  # docs/results.md, "Parity with fit"
    update: type[MomentumUpdate] = MomentumUpdate

    def of_keras(self, kind: type[keras.Optimizer], values: Values) -> Values | None:
        if kind is not keras.optimizers.SGD or not values["momentum"] or values["nesterov"] != self.update.looks_ahead:
            return None
        return {"momentum": values["momentum"]}

    def equation(self, settings: MomentumSettings, parts: UpdateParts) -> Slots:
        """Return v and w + v, where v = momentum * v - learning_rate * g (Polyak 1964)."""
        step = parts.learning_rate * parts.factors * parts.scaled_gradient
        velocity = settings.momentum * parts.slots["momentum"] - step
        return {"momentum": velocity, "weights": parts.decayed_weights + velocity}
