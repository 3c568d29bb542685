"""The base class of update rules, which apply a gradient to a shard's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np

from ps_cluster.config.equations import Matrix
from ps_cluster.config.lazy import tf
from ps_cluster.config.optimizer_rules import RULES, OwnSettings, RuleSettings


class Gradient(NamedTuple):
    """A gradient, and the numbers that an update by this gradient needs.

    A staleness method may return a scale. It scales the effect of this gradient on this step and, with momentum or
    Adam, on later steps. The effect of earlier gradients stays the same. In Adam the scale multiplies the gradient in
    the mean but not in the mean square, because otherwise it would cancel out. It also scales the update's weight
    decay, so that the balance between gradients and decay does not depend on the scale.
    """

    values: tf.Tensor  # float32 [n]; for rows of embedding tables, float32 [u, width]
    learning_rate: tf.Tensor  # float32 []
    updates_before: tf.Tensor  # int64 [], the number of updates applied to this shard before (Adam's bias correction)
    scale: tf.Tensor | None = None  # float32 [] or [n], from 0 to 1; None means 1

    @property
    def scaled(self) -> tf.Tensor:
        """The values times the scale."""
        return times(self.scale, self.values)


class Step(NamedTuple):
    """The step of an update, and the new slots. All tensors have the shape of the gradient's values."""

    values: tf.Tensor  # the update subtracts them from the weights
    slots: Mapping[str, tf.Tensor]  # name → the new values of the slot


class RuleVariables(Protocol):
    """Creates the variables that a rule needs besides its weights, on a shard or in a worker's process."""

    def variable(self, name: str, value: np.ndarray | tf.Tensor, /) -> tf.Variable:
        """Return a variable whose initial value is `value`."""

    def fixed(self, name: str, value: np.ndarray, /) -> tf.Variable | tf.Tensor:
        """Return a variable or tensor with this value, for use in graphs. The value never changes."""


class OnThisDevice:
    """Creates variables on the current device, which is a shard's device. The names are ignored."""

    def variable(self, name: str, value: np.ndarray | tf.Tensor, /) -> tf.Variable:
        return tf.Variable(value, trainable=False)

    def fixed(self, name: str, value: np.ndarray, /) -> tf.Variable:
        return tf.Variable(value, trainable=False)  # a constant would be a part of every graph


ON_THIS_DEVICE = OnThisDevice()


def make_rule(
    settings: RuleSettings,
    weights: tf.Variable,
    factors: np.ndarray,
    variables: RuleVariables = ON_THIS_DEVICE,
    matrices: Sequence[Matrix] = (),
) -> UpdateRule[Any]:
    """Return the rule that `settings.rule` names. All arguments are as for `UpdateRule`."""
    return RULES[settings.rule].update(settings, weights, factors, variables, matrices)


class UpdateRule(Generic[OwnSettings]):
    """One shard's optimizer: its slots, and the operations that apply a gradient. Create it on the shard's device.

    A rule overrides at least one of these three methods. A method that is not overridden calls the next one.

      change: for a fused kernel of TensorFlow, which is faster than the formula.
      step: for a rule that treats several weights together, or has settings outside of the section `optimizer`.
      formula: for a rule that treats each weight alone. `RowsByFormula` uses it for rows of embedding tables, too.

    Weight decay is decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2). A weight's learning-rate
    factor scales the effect of its gradient but not its decay, as in airbench (Jordan 2024, arXiv:2404.00498). Biases
    in airbench learn 64 times as fast, and would vanish if they also decayed 64 times as fast. But a weight with
    factor 0 does not decay either: it never changes.

    Attributes:
      settings, weights, matrices: as for the constructor.
      factors: float32 [n], the learning-rate factors; None if all are 1.
      slot_names: the names of the vectors that are kept in addition to the weights. `first_values` returns the initial
        values of these vectors.
      slots: name → float32 [n].
    """

    slot_names: tuple[str, ...] = ()

    def __init__(
        self,
        settings: OwnSettings,
        weights: tf.Variable,
        factors: np.ndarray,
        variables: RuleVariables = ON_THIS_DEVICE,
        matrices: Sequence[Matrix] = (),
    ):
        """Create the slots.

        Args:
          settings: the section `optimizer`.
          weights: float32 [n].
          factors: float32 [n], the learning-rate factor of each weight.
          variables: creates the variables.
          matrices: the positions of the matrices that match `RuleSettings.matrix_patterns`, in order.
        """
        self.settings = settings
        self.weights = weights
        self.matrices = matrices
        self.factors = None if np.all(factors == 1) else variables.fixed("factors", factors)
        rates = decay_rates(settings, factors)
        self._decay = variables.fixed("decay", rates) if settings.weight_decay else None
        self.slots = {
            name: variables.variable(name, tf.fill(weights.shape, value))
            for name, value in self.first_values(settings).items()
        }

    @classmethod
    def first_values(cls, settings: OwnSettings) -> dict[str, float]:
        """Return for each slot the initial value of all its elements. `settings`: the section `optimizer`."""
        return dict.fromkeys(cls.slot_names, 0.0)

    def used_rate(self, learning_rate: tf.Tensor) -> tf.Tensor:
        """Return the learning rate to use for an update, float32 []. `learning_rate`: float32 [], from the push."""
        return learning_rate

    def apply(self, gradient: Gradient) -> tf.Operation:
        """Apply one gradient: shrink the weights by their decay, then `change` them."""
        done: list[tf.Operation] = []
        if self._decay is not None:
            shrink = times(gradient.scale, gradient.learning_rate * self._decay * self.weights.read_value())
            done.append(self.weights.assign_sub(shrink, read_value=False))
        with tf.control_dependencies(done):
            return self.change(gradient)

    def change(self, gradient: Gradient) -> tf.Operation:
        """Subtract the step, times the learning-rate factors, from the weights, and set the slots."""
        step = self.step(gradient)
        slots = [self.slots[name].assign(value, read_value=False) for name, value in step.slots.items()]
        return tf.group(*slots, self.weights.assign_sub(times(self.factors, step.values), read_value=False))

    def step(self, gradient: Gradient) -> Step:
        """Return the step for all weights, without the learning-rate factors."""
        return self.formula(self.settings, gradient, {name: slot.read_value() for name, slot in self.slots.items()})

    @classmethod
    def formula(cls, settings: OwnSettings, gradient: Gradient, slots: Mapping[str, tf.Tensor]) -> Step:
        """Return the step for some weights, without their learning-rate factors.

        This is a class method, because it is also used for rows of tables, which have no object of this class.

        Args:
          settings: the section `optimizer`.
          gradient: the gradient of the weights.
          slots: name → the current values, in the shape of the gradient's values.
        """
        raise NotImplementedError(f"{cls.__name__} has to override `formula`, `step` or `change`")


def times(factor: tf.Tensor | None, vector: tf.Tensor) -> tf.Tensor:
    """Return factor * vector; the vector itself if the factor is None."""
    return vector if factor is None else factor * vector


def running_mean(decay: float, before: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return a running mean, updated with a new value."""
    return before + (1 - decay) * (value - before)


def decay_rates(settings: RuleSettings, factors: np.ndarray) -> np.ndarray:
    """Return the fraction of each weight that weight decay removes, per unit of learning rate.

    The result is float32 [n], or [] if the fraction is the same for all weights.
    """
    if np.all(factors != 0):
        return np.array(settings.weight_decay, np.float32)
    return np.where(factors == 0, 0, settings.weight_decay).astype(np.float32)
