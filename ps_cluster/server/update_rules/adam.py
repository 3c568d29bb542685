"""Optimizer rule adam: Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.optimizer_rules import OptimizerRule, Values, check_without_effect
from ps_cluster.config.setting_types import LARGEST_FACTOR, SMALLEST_EPSILON, Momentum
from ps_cluster.server.update_rules.momentum import MomentumSettings
from ps_cluster.server.update_rules.row_rule import RowsByFormula
from ps_cluster.server.update_rules.rule import Gradient, Step, UpdateRule, running_mean


class AdamSettings(MomentumSettings):
    momentum: Momentum = Field(default=0.9, description="beta_1 of Adam.")
    beta_2: float = Field(default=0.999, ge=0, lt=1, description="beta_2 of Adam: decay of the running mean square.")
    epsilon: float = Field(
        default=1e-7,
        ge=SMALLEST_EPSILON,
        le=LARGEST_FACTOR,
        description="epsilon of Adam: a number that is added to the root of the mean square, so that the rule never "
        "divides by 0.",
    )

    @property
    def slowest_decay(self) -> float:
        return max(self.momentum, self.beta_2)


class AdamUpdate(UpdateRule[AdamSettings]):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1)."""

    slot_names = ("mean", "variance")

    def change(self, gradient: Gradient) -> tf.Operation:
        if gradient.scale is not None or self.factors is not None:  # the kernel supports neither
            return super().change(gradient)
        settings, count = self.settings, tf.cast(gradient.updates_before + 1, tf.float32)
        return tf.raw_ops.ResourceApplyAdam(
            var=self.weights.handle,
            m=self.slots["mean"].handle,
            v=self.slots["variance"].handle,
            beta1_power=settings.momentum**count,
            beta2_power=settings.beta_2**count,
            lr=gradient.learning_rate,
            beta1=settings.momentum,
            beta2=settings.beta_2,
            epsilon=settings.epsilon,
            grad=gradient.values,
            use_locking=True,
        )

    @classmethod
    def formula(cls, settings: AdamSettings, gradient: Gradient, slots: Mapping[str, tf.Tensor]) -> Step:
        mean = running_mean(settings.momentum, slots["mean"], gradient.scaled)
        variance = running_mean(settings.beta_2, slots["variance"], gradient.values * gradient.values)
        rate = gradient.learning_rate * bias_correction(settings, gradient.updates_before)
        return Step(rate * mean / (tf.sqrt(variance) + settings.epsilon), {"mean": mean, "variance": variance})


def bias_correction(settings: AdamSettings, updates_before: tf.Tensor) -> tf.Tensor:
    """Return the factor of the learning rate that corrects the bias of mean and variance, float32 []."""
    count = tf.cast(updates_before + 1, tf.float64)  # float32 would lose three digits of 1 - 0.999^t
    return tf.cast(tf.sqrt(1 - settings.beta_2**count) / (1 - settings.momentum**count), tf.float32)


class Adam(OptimizerRule[AdamSettings]):
    name = "adam"
    Settings = AdamSettings
    usual_rate = 0.001
    staleness_method = "predict"  # docs/results.md, "Async against sync"
    update = AdamUpdate
    row_update = RowsByFormula

    def of_keras(self, kind: type[keras.Optimizer], values: Values) -> Values | None:
        if kind not in (keras.optimizers.Adam, keras.optimizers.AdamW):
            return None
        check_without_effect(values, amsgrad=False)
        return {"momentum": values["beta_1"], "beta_2": values["beta_2"], "epsilon": values["epsilon"]}

    def equation(self, settings: AdamSettings, parts: UpdateParts) -> Slots:
        """Return mean, variance and weights after the update, by algorithm 1 of the paper (see `AdamUpdate`).

        As in section 2 of the paper, epsilon is added to the root of the variance without bias correction.
        """
        count, beta_1, beta_2 = parts.updates_before + 1, settings.momentum, settings.beta_2
        mean = beta_1 * parts.slots["mean"] + (1 - beta_1) * parts.scaled_gradient
        variance = beta_2 * parts.slots["variance"] + (1 - beta_2) * parts.gradient**2
        rate = parts.learning_rate * np.sqrt(1 - beta_2**count) / (1 - beta_1**count)
        step = parts.factors * rate * mean / (np.sqrt(variance) + settings.epsilon)
        return {"mean": mean, "variance": variance, "weights": parts.decayed_weights - step}
