"""Optimizer rule adagrad: Adagrad."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings, Values
from ps_cluster.config.setting_types import LARGEST_FACTOR, SMALLEST_EPSILON
from ps_cluster.server.update_rules.row_rule import RowRule
from ps_cluster.server.update_rules.rule import Gradient, Step, UpdateRule, times


class AdagradSettings(RuleSettings):
    initial_accumulator_value: float = Field(
        default=0.1,
        ge=0,
        le=LARGEST_FACTOR,
        description="The value with which each weight's sum of squared gradients starts.",
    )
    epsilon: float = Field(
        default=1e-7,
        ge=SMALLEST_EPSILON,
        le=LARGEST_FACTOR,
        description="A number that is added to the root of the sum, so that the rule never divides by 0.",
    )


class AdagradUpdate(UpdateRule[AdagradSettings]):
    """Adagrad: n += g^2; w -= learning_rate * g / (sqrt(n) + epsilon).

    Adagrad with a diagonal matrix (Duchi et al. 2011, jmlr.org/papers/v12/duchi11a.html, figure 1). The gradient's
    scale (see `Gradient`) scales the step, but n is computed from the unscaled gradient, like the mean square in Adam.
    """

    slot_names = ("accumulator",)

    @classmethod
    def first_values(cls, settings: AdagradSettings) -> dict[str, float]:
        return {"accumulator": settings.initial_accumulator_value}

    def change(self, gradient: Gradient) -> tf.Operation:
        if gradient.scale is not None or self.factors is not None:  # the kernel supports neither
            return super().change(gradient)
        return tf.raw_ops.ResourceApplyAdagradV2(
            var=self.weights.handle,
            accum=self.slots["accumulator"].handle,
            lr=gradient.learning_rate,
            epsilon=self.settings.epsilon,
            grad=gradient.values,
            use_locking=True,
        )

    @classmethod
    def formula(cls, settings: AdagradSettings, gradient: Gradient, slots: Mapping[str, tf.Tensor]) -> Step:
        accumulator = slots["accumulator"] + gradient.values * gradient.values
        step = gradient.learning_rate * gradient.values / (tf.sqrt(accumulator) + settings.epsilon)
        return Step(times(gradient.scale, step), {"accumulator": accumulator})


class AdagradRows(RowRule[AdagradSettings]):
    """The update of `AdagradUpdate`, computed by TensorFlow's fused sparse kernel."""

    def apply(self, indices: tf.Tensor, gradient: Gradient) -> tf.Operation:
        # The step is linear in the rate, so the gradient scale scales the rate. It must not scale the sum of squares.
        return tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=self.rows.handle,
            accum=self.slots["accumulator"].handle,
            lr=times(gradient.scale, gradient.learning_rate),
            epsilon=self.settings.epsilon,
            grad=gradient.values,
            indices=indices,
            use_locking=True,
        )


class Adagrad(OptimizerRule[AdagradSettings]):
    name = "adagrad"
    Settings = AdagradSettings
    usual_rate = 0.001
    update = AdagradUpdate
    row_update = AdagradRows

    def of_keras(self, kind: type[keras.Optimizer], values: Values) -> Values | None:
        if kind is not keras.optimizers.Adagrad:
            return None
        # Keras adds epsilon inside the root, the rule outside.
        first = values["initial_accumulator_value"] + values["epsilon"]
        return {"initial_accumulator_value": first, "epsilon": SMALLEST_EPSILON}

    def equation(self, settings: AdagradSettings, parts: UpdateParts) -> Slots:
        """Return n and w after the update, as in the docstring of `AdagradUpdate`."""
        accumulator = parts.slots["accumulator"] + parts.gradient**2
        step = parts.learning_rate * parts.scaled_gradient / (np.sqrt(accumulator) + settings.epsilon)
        return {"accumulator": accumulator, "weights": parts.decayed_weights - parts.factors * step}
