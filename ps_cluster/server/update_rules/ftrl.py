"""Optimizer rule ftrl: FTRL-Proximal, "follow the regularised leader"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.lazy import keras, tf
from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings, Values, check_without_effect
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.setting_types import LARGEST_FACTOR, SMALLEST_EPSILON, Factor
from ps_cluster.server.update_rules.row_rule import RowRule
from ps_cluster.server.update_rules.rule import Gradient, UpdateRule, times


class FtrlSettings(RuleSettings):
    learning_rate_power: float = Field(
        default=-0.5,
        ge=-1,
        le=0,
        description="The learning rate of each weight is proportional to this power of the sum of its squared gradients; "
        "0: the rate does not fall.",
    )
    initial_accumulator_value: float = Field(
        default=0.1,
        ge=SMALLEST_EPSILON,
        le=LARGEST_FACTOR,
        description="The value with which the sum of squared gradients starts. The initial weights fade as the sum "
        "grows.",
    )
    l1: Factor = Field(
        default=0.0,
        description="Strength of the L1 regularisation, which sets weights to exactly 0. It is multiplied by the "
        "current learning rate, so keep the rate constant if you want weights that are exactly 0.",
    )
    l2: Factor = Field(
        default=0.0,
        description="Strength of the L2 regularisation. As in Keras, it is half of the λ2 of the FTRL paper.",
    )


class FtrlUpdate(UpdateRule[FtrlSettings]):
    """FTRL-Proximal: n' = n + g^2; z += learning_rate * g - (n'^-power - n^-power) * w;
    w = -sign(z) * max(0, |z| - learning_rate * l1) / (n'^-power + 2 * learning_rate * l2).

    n is the sum of the squared gradients, n' its new value, and `power` the setting `learning_rate_power`.

    FTRL-Proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches", algorithm 1) in the form of
    TensorFlow's kernel, with β = 0. Here z is the paper's z times the learning rate. At a constant rate this makes no
    difference. With the paper's z, a schedule would scale all weights along with the rate.

    z starts at 0, as in Keras, so the weights forget their initial values as n grows. A learning-rate factor multiplies
    the rate of its weight. The gradient scale (see `Gradient`) scales the gradient in z, but n is computed from the
    unscaled gradient, and the regularisation stays the same.
    """

    slot_names = ("accumulator", "linear")

    @classmethod
    def first_values(cls, settings: FtrlSettings) -> dict[str, float]:
        return {"accumulator": settings.initial_accumulator_value, "linear": 0.0}

    def change(self, gradient: Gradient) -> tf.Operation:
        settings, slots = self.settings, self.slots
        if gradient.scale is None and self.factors is None:
            return tf.raw_ops.ResourceApplyFtrl(
                var=self.weights.handle,
                accum=slots["accumulator"].handle,
                linear=slots["linear"].handle,
                grad=gradient.values,
                lr=gradient.learning_rate,
                l1=settings.l1,
                l2=settings.l2,
                lr_power=settings.learning_rate_power,
                multiply_linear_by_lr=True,
                use_locking=True,
            )
        # The kernel supports neither a gradient scale nor factors.
        variables = self.weights, slots["accumulator"], slots["linear"]
        before = [variable.read_value() for variable in variables]
        weights, *new_slots = _new_values(settings, before, gradient, times(self.factors, gradient.learning_rate))
        if self.factors is not None:
            weights = tf.where(tf.equal(self.factors, 0.0), before[0], weights)
        return tf.group(*(one.assign(new, read_value=False) for one, new in zip(variables, [weights, *new_slots])))


def _new_values(
    settings: FtrlSettings, before: Sequence[tf.Tensor], gradient: Gradient, rate: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return weights, n and z after an update, as in the docstring of `FtrlUpdate`.

    Args:
      before: weights, n and z before the update.
      rate: float32 [], or [n] with learning-rate factors.
    """
    weights, accumulator, linear = before
    power = -settings.learning_rate_power
    summed = accumulator + gradient.values * gradient.values
    root = summed**power
    linear = linear + rate * gradient.scaled - (root - accumulator**power) * weights
    new = -tf.sign(linear) * tf.nn.relu(tf.abs(linear) - rate * settings.l1) / (root + 2 * rate * settings.l2)
    return new, summed, linear


class FtrlRows(RowRule[FtrlSettings]):
    """The update of `FtrlUpdate`, computed by TensorFlow's fused sparse kernel.

    A row keeps its initial weights until it has its first gradient.
    """

    def apply(self, indices: tf.Tensor, gradient: Gradient) -> tf.Operation:
        settings, slots = self.settings, self.slots
        if gradient.scale is not None:  # the kernel can't scale the gradient in z alone
            variables = self.rows, slots["accumulator"], slots["linear"]
            before = [tf.gather(variable, indices) for variable in variables]
            after = _new_values(settings, before, gradient, gradient.learning_rate)
            return tf.group(*(v.scatter_update(tf.IndexedSlices(new, indices)) for v, new in zip(variables, after)))
        return tf.raw_ops.ResourceSparseApplyFtrl(
            var=self.rows.handle,
            accum=slots["accumulator"].handle,
            linear=slots["linear"].handle,
            grad=gradient.values,
            indices=indices,
            lr=gradient.learning_rate,
            l1=settings.l1,
            l2=settings.l2,
            lr_power=settings.learning_rate_power,
            multiply_linear_by_lr=True,
            use_locking=True,
        )


class Ftrl(OptimizerRule[FtrlSettings]):
    name = "ftrl"
    Settings = FtrlSettings
    usual_rate = 0.001
    update = FtrlUpdate
    row_update = FtrlRows

    def of_keras(self, kind: type[keras.Optimizer], values: Values) -> Values | None:
        if kind is not keras.optimizers.Ftrl:
            return None
        check_without_effect(values, l2_shrinkage_regularization_strength=0.0, beta=0.0)
        if isinstance(values["learning_rate"], dict):  # Keras would scale all weights with the rate, see `FtrlUpdate`
            raise ValueError(f"has a schedule ({values['learning_rate']['class_name']}) as its learning rate")
        return {
            "l1": values["l1_regularization_strength"],
            "l2": values["l2_regularization_strength"],
            "learning_rate_power": values["learning_rate_power"],
            "initial_accumulator_value": values["initial_accumulator_value"],
        }

    def equation(self, settings: FtrlSettings, parts: UpdateParts) -> Slots:
        """Return n, z and w after the update, as in the docstring of `FtrlUpdate`."""
        rate, power = parts.learning_rate * parts.factors, -settings.learning_rate_power
        before, linear = parts.slots["accumulator"], parts.slots["linear"]
        accumulator = before + parts.gradient**2
        root = accumulator**power
        linear = linear + rate * parts.scaled_gradient - (root - before**power) * parts.weights
        new = -np.sign(linear) * np.maximum(0, np.abs(linear) - rate * settings.l1) / (root + 2 * rate * settings.l2)
        weights = np.where(parts.factors == 0, parts.weights, new)
        return {"accumulator": accumulator, "linear": linear, "weights": weights}

    def check(self, config: RunConfig) -> None:
        """Raise ValueError if a setting changes the weights in a way other than by this rule.

        Such a change would be lost at the next update, because this rule computes the weights from its slots alone.
        """
        why = "rule ftrl computes the weights from sums of gradients alone, so"
        if decay := config.optimizer.weight_decay:
            raise ValueError(
                f"optimizer.weight_decay: got {decay:g}: {why} weight decay would be lost: set 0, and use optimizer.l2 "
                "instead"
            )
        if every := config.lookahead.every_updates:
            raise ValueError(
                f"lookahead.every_updates: got {every}: {why} the mean of the weights would be lost: set 0"
            )
        if config.chosen_mode.synchrony.takes_local_steps:
            raise ValueError(
                f"optimizer.rule: got 'ftrl': {why} in mode {config.mode.name} a worker's local steps would overwrite the "
                "weights that it has pulled: choose another rule or mode"
            )
