"""Optimizer rule rmsprop: RMSprop."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.optimizer_rules import OptimizerRule, Values, check_without_effect
from ps_cluster.config.setting_types import LARGEST_FACTOR, SMALLEST_EPSILON, Momentum
from ps_cluster.server.update_rules.momentum import MomentumSettings
from ps_cluster.server.update_rules.rule import Gradient, Step, UpdateRule, running_mean, times


class RmspropSettings(MomentumSettings):
    momentum: Momentum = Field(
        default=0.0, description="Decay of the running sum of the scaled gradients; 0: no momentum."
    )
    rho: float = Field(default=0.9, ge=0, lt=1, description="Decay of the running mean square.")
    epsilon: float = Field(
        default=1e-7,
        ge=SMALLEST_EPSILON,
        le=LARGEST_FACTOR,
        description="A number that is added to the mean square, so that the rule never divides by 0.",
    )

    @property
    def slowest_decay(self) -> float:
        return max(self.momentum, self.rho)


class RmspropUpdate(UpdateRule[RmspropSettings]):
    """RMSprop: s = rho * s + (1 - rho) * g^2; v = momentum * v + learning_rate * g / sqrt(s + epsilon); w -= v.

    Tieleman and Hinton 2012, Lecture 6.5 of Neural Networks for Machine Learning, in the form of Keras and TensorFlow.
    """

    slot_names = ("mean_square", "momentum")

    def change(self, gradient: Gradient) -> tf.Operation:
        if gradient.scale is not None or self.factors is not None:  # the kernel supports neither
            return super().change(gradient)
        settings = self.settings
        return tf.raw_ops.ResourceApplyRMSProp(
            var=self.weights.handle,
            ms=self.slots["mean_square"].handle,
            mom=self.slots["momentum"].handle,
            lr=gradient.learning_rate,
            rho=settings.rho,
            momentum=settings.momentum,
            epsilon=settings.epsilon,
            grad=gradient.values,
            use_locking=True,
        )

    @classmethod
    def formula(cls, settings: RmspropSettings, gradient: Gradient, slots: Mapping[str, tf.Tensor]) -> Step:
        # As in Adam, the gradient scale has no effect on the mean square.
        mean_square = running_mean(settings.rho, slots["mean_square"], gradient.values * gradient.values)
        step = gradient.learning_rate * gradient.values * tf.math.rsqrt(mean_square + settings.epsilon)
        velocity = settings.momentum * slots["momentum"] + times(gradient.scale, step)
        return Step(velocity, {"mean_square": mean_square, "momentum": velocity})


class Rmsprop(OptimizerRule[RmspropSettings]):
    name = "rmsprop"
    Settings = RmspropSettings
    usual_rate = 0.001
    update = RmspropUpdate

    def of_keras(self, kind: type[keras.Optimizer], values: Values) -> Values | None:
        if kind is not keras.optimizers.RMSprop:
            return None
        check_without_effect(values, centered=False)
        return {name: values[name] for name in ("momentum", "rho", "epsilon")}

    def equation(self, settings: RmspropSettings, parts: UpdateParts) -> Slots:
        """Return s, v and w after the update, as in the docstring of `RmspropUpdate`."""
        mean_square = settings.rho * parts.slots["mean_square"] + (1 - settings.rho) * parts.gradient**2
        step = parts.learning_rate * parts.scaled_gradient / np.sqrt(mean_square + settings.epsilon)
        velocity = settings.momentum * parts.slots["momentum"] + step
        return {
            "mean_square": mean_square,
            "momentum": velocity,
            "weights": parts.decayed_weights - parts.factors * velocity,
        }
