"""Apply one gradient to a slice's weights, mostly with one locked TensorFlow kernel: the base classes of rules/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ps_cluster.config.registry import find, tf
from ps_cluster.config.update_settings import RULES, RuleSettings


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
            shrink = times(share, learning_rate * self._decay * self._weights.read_value())
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


class LinearUpdate(UpdateRule):
    """A rule that is linear in the gradient: scaling the gradient scales the learning rate."""

    def _change(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor, share: tf.Tensor | None
    ) -> tf.Operation:
        return self._step(times(self._factors, times(share, gradient)), learning_rate)

    @abstractmethod
    def _step(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Operation:
        """Apply the scaled gradient."""


def times(factor: tf.Tensor | None, vector: tf.Tensor) -> tf.Tensor:
    """Return their product; `vector` itself where the factor is None."""
    return vector if factor is None else factor * vector


def decay_rates(settings: RuleSettings, factors: np.ndarray) -> np.ndarray:
    """Return the share of each weight that decay removes per unit of learning rate, float32 [n]; [] if all equal."""
    if np.all(factors != 0):
        return np.array(settings.weight_decay, np.float32)
    return np.where(factors == 0, 0, settings.weight_decay).astype(np.float32)
