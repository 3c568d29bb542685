"""Optimizer rule rmsprop: RMSprop."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import OptimizerRule
from ps_cluster.config.setting_types import LARGEST_FACTOR, SMALLEST_EPSILON, Momentum
from ps_cluster.server.update_rules.momentum import MomentumSettings
from ps_cluster.server.update_rules.rule import Gradient, UpdateRule, times


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
        settings, slots = self.settings, self.slots
        if gradient.scale is None and self.factors is None:
            return tf.raw_ops.ResourceApplyRMSProp(
                var=self.weights.handle,
                ms=slots["mean_square"].handle,
                mom=slots["momentum"].handle,
                lr=gradient.learning_rate,
                rho=settings.rho,
                momentum=settings.momentum,
                epsilon=settings.epsilon,
                grad=gradient.values,
                use_locking=True,
            )
        # The kernel supports neither a gradient scale nor factors. As in Adam, the gradient scale has no effect on the
        # mean square.
        before = slots["mean_square"].read_value()
        mean_square = before + (1 - settings.rho) * (gradient.values * gradient.values - before)
        step = gradient.learning_rate * gradient.values * tf.math.rsqrt(mean_square + settings.epsilon)
        velocity = settings.momentum * slots["momentum"].read_value() + times(gradient.scale, step)
        return tf.group(
            slots["mean_square"].assign(mean_square, read_value=False),
            slots["momentum"].assign(velocity, read_value=False),
            self.weights.assign_sub(times(self.factors, velocity), read_value=False),
        )


class Rmsprop(OptimizerRule[RmspropSettings]):
    name = "rmsprop"
    Settings = RmspropSettings
    usual_rate = 0.001
    update = RmspropUpdate

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
