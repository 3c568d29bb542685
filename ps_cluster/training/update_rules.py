"""The update rules: apply one gradient to a slice's weights, mostly with one locked TensorFlow kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import tensorflow as tf

from ps_cluster.catalogue.imports import find
from ps_cluster.catalogue.rules import RULES, RuleSettings


def make_rule(settings: RuleSettings, weights: tf.Variable, factors: np.ndarray) -> UpdateRule:
    """Return the rule that `settings` choose, for the weights of a slice. `factors`: as for `UpdateRule`."""
    return find(RULES[settings.rule].update)(settings, weights, factors)


class UpdateRule(ABC):
    """One slice's optimizer: its slots, and the operations that apply a gradient. Create it on the slice's device.

    Weight decay is decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2). A weight's learning-rate
    factor scales the effect of its gradient but not its decay, as in airbench (Jordan 2024, arXiv:2404.00498): biases
    there learn 64 times as fast, and would vanish if they decayed as fast. A weight of factor 0 never changes.

    Attributes:
      slot_names: names of the vectors kept beside the weights, which start at 0.
      applied: int64 [], how often the weights were changed, counted independently of version and ledger.
    """

    slot_names: tuple[str, ...] = ()

    def __init__(self, settings: RuleSettings, weights: tf.Variable, factors: np.ndarray):
        """Create the slots. `factors`: float32 [n], the learning-rate factor of each weight."""
        self._settings: Any = settings
        self._weights = weights
        self.applied = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._factors = None if np.all(factors == 1) else tf.Variable(factors, trainable=False)
        self._decay = tf.Variable(decay_rates(settings, factors), trainable=False) if settings.weight_decay else None
        self.slots = {name: tf.Variable(tf.zeros_like(weights)) for name in self.slot_names}

    def apply(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None = None
    ) -> tf.Operation:
        """Apply one gradient.

        A share scales the effect of this gradient, now and, with momentum or Adam, in later steps; earlier gradients
        keep theirs. Adam scales the gradient in its mean but not in its mean square: scaled in both, the share would
        cancel out. The update's weight decay is scaled by the share too, so that the balance of gradients and decay
        does not depend on it.

        Args:
          gradient: float32 [n].
          learning_rate: float32 [].
          updates_before: int64 [], how many were applied to this slice before (adam's bias correction).
          share: float32 [] or [n], from 0 to 1; None is 1.
        """
        done: list[tf.Operation] = []
        if self._decay is not None:
            shrink = _times(share, learning_rate * self._decay * self._weights.read_value())
            done.append(self._weights.assign_sub(shrink, read_value=False))
        with tf.control_dependencies(done):
            changed = self._change(gradient, learning_rate, updates_before, share)
        with tf.control_dependencies([changed]):
            return self.count()

    def count(self) -> tf.Operation:
        """Count a change of the weights. Call it for changes made in other ways than by `apply`."""
        return self.applied.assign_add(1, read_value=False)

    @abstractmethod
    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        """Change the weights and the slots. Arguments as for `apply`."""


class _Linear(UpdateRule):
    """A rule that is linear in the gradient: scaling the gradient scales the learning rate."""

    def _change(self, gradient, learning_rate, updates_before, share):
        return self._step(_times(self._factors, _times(share, gradient)), learning_rate)

    @abstractmethod
    def _step(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Operation:
        """Apply the scaled gradient."""


class Sgd(_Linear):
    """w -= learning rate x g."""

    def _step(self, gradient, learning_rate):
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=self._weights.handle, alpha=learning_rate, delta=gradient, use_locking=True
        )


class Momentum(_Linear):
    """v = momentum x v - learning rate x g; w += v."""

    slot_names = ("momentum",)
    looks_ahead = False

    def _step(self, gradient, learning_rate):
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=self._weights.handle,
            accum=self.slots["momentum"].handle,
            lr=learning_rate,
            grad=gradient,
            momentum=self._settings.momentum,
            use_nesterov=self.looks_ahead,
            use_locking=True,
        )


class Nesterov(Momentum):
    """v as with `Momentum`; w += momentum x v - learning rate x g."""

    looks_ahead = True


class Adam(UpdateRule):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1)."""

    slot_names = ("mean", "variance")

    def _change(self, gradient, learning_rate, updates_before, share):
        if share is None and self._factors is None:
            return self._fused(gradient, learning_rate, updates_before)
        return self._scaled(gradient, learning_rate, updates_before, share)

    def _fused(self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor) -> tf.Operation:
        settings = self._settings
        count = tf.cast(updates_before + 1, tf.float32)
        return tf.raw_ops.ResourceApplyAdam(
            var=self._weights.handle,
            m=self.slots["mean"].handle,
            v=self.slots["variance"].handle,
            beta1_power=settings.momentum**count,
            beta2_power=settings.beta_2**count,
            lr=learning_rate,
            beta1=settings.momentum,
            beta2=settings.beta_2,
            epsilon=settings.epsilon,
            grad=gradient,
            use_locking=True,
        )

    def _scaled(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        """Do what `_fused` does in single operations, since its kernel supports neither a share nor factors."""
        settings = self._settings
        count = tf.cast(updates_before + 1, tf.float64)  # float32 would lose three digits of 1 - 0.999^t
        correction = tf.sqrt(1 - settings.beta_2**count) / (1 - settings.momentum**count)
        rate = learning_rate * tf.cast(correction, tf.float32)
        new = {
            "mean": _mean(settings.momentum, self.slots["mean"], _times(share, gradient)),
            "variance": _mean(settings.beta_2, self.slots["variance"], gradient * gradient),
        }
        step = _times(self._factors, rate * new["mean"] / (tf.sqrt(new["variance"]) + settings.epsilon))
        slots = [self.slots[name].assign(value, read_value=False) for name, value in new.items()]
        return tf.group(*slots, self._weights.assign_sub(step, read_value=False))


def _times(factor: tf.Tensor | None, vector: tf.Tensor) -> tf.Tensor:
    return vector if factor is None else factor * vector


def _mean(decay: float, slot: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    before = slot.read_value()
    return before + (1 - decay) * (value - before)


def decay_rates(settings: RuleSettings, factors: np.ndarray) -> np.ndarray:
    """Return the share of each weight that decay removes per unit of learning rate, float32 [n]; [] if all equal."""
    if np.all(factors != 0):
        return np.array(settings.weight_decay, np.float32)
    return np.where(factors == 0, 0, settings.weight_decay).astype(np.float32)
