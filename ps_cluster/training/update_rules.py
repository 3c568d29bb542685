"""The update rules: what a parameter server does to its slice with one gradient. Each is a locked TensorFlow kernel."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ps_cluster.config import Optimizer


class UpdateRule:
    """One slice's optimizer: its slots, and the operations that apply a gradient. Create it on the slice's device.

    Weight decay is decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2). A learning-rate factor of a
    weight scales what its gradient does and not its decay, as in airbench (Jordan 2024, arXiv:2404.00498): its biases
    learn 64 times as fast and would vanish if they decayed so. A weight of factor 0 stays as it is.

    Attributes:
      applied: int64 [], how often the weights were changed: evidence that does not rest on the version or the ledger.
    """

    def __init__(self, settings: Optimizer, weights: tf.Variable, factors: np.ndarray):
        """`factors`: float32 [n], the learning-rate factor of each weight."""
        self._settings = settings
        self._weights = weights
        self.applied = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._factors = None if np.all(factors == 1) else tf.Variable(factors, trainable=False)
        self._decay = tf.Variable(decay_rates(settings, factors), trainable=False) if settings.weight_decay else None
        slots = {"sgd": (), "momentum": ("momentum",), "nesterov": ("momentum",), "adam": ("mean", "variance")}
        self.slots = {name: tf.Variable(tf.zeros_like(weights)) for name in slots[settings.rule]}

    def apply(self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor) -> tf.Operation:
        """Applies one gradient.

        Args:
          gradient: float32 [n].
          learning_rate: float32 [].
          updates_before: int64 [], how many were applied to this slice before (adam's bias correction).
        """
        settings = self._settings
        done: list[tf.Operation] = []
        if self._decay is not None:
            shrink = learning_rate * self._decay * self._weights.read_value()
            done.append(self._weights.assign_sub(shrink, read_value=False))
        with tf.control_dependencies(done):
            if settings.rule == "adam":
                changed = self._adam(gradient, learning_rate, updates_before)
            else:
                changed = self._linear(self._scaled(gradient), learning_rate)
        with tf.control_dependencies([changed]):
            return self.count()

    def count(self) -> tf.Operation:
        """Count a change of the weights; for whoever changes them otherwise."""
        return self.applied.assign_add(1, read_value=False)

    def _scaled(self, vector: tf.Tensor) -> tf.Tensor:
        return vector if self._factors is None else vector * self._factors

    def _linear(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> tf.Operation:
        """Rules that are linear in the gradient, so that scaling it is scaling the learning rate."""
        if self._settings.rule == "sgd":
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=self._weights.handle, alpha=learning_rate, delta=gradient, use_locking=True
            )
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=self._weights.handle,
            accum=self.slots["momentum"].handle,
            lr=learning_rate,
            grad=gradient,
            momentum=self._settings.momentum,
            use_nesterov=self._settings.rule == "nesterov",
            use_locking=True,
        )

    def _adam(self, gradient: tf.Tensor, learning_rate: tf.Tensor, updates_before: tf.Tensor) -> tf.Operation:
        """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1); a factor scales the step that it would take."""
        settings = self._settings
        count = tf.cast(updates_before + 1, tf.float32)
        before = self._weights.read_value() if self._factors is not None else None
        with tf.control_dependencies([] if before is None else [before]):
            applied = tf.raw_ops.ResourceApplyAdam(
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
        if before is None:
            return applied
        with tf.control_dependencies([applied]):
            step = self._weights.read_value() - before
        return self._weights.assign(before + self._factors * step, read_value=False)


def decay_rates(settings: Optimizer, factors: np.ndarray) -> np.ndarray:
    """float32: what share of each weight an update takes away per unit of learning rate; [] where it is the same for all."""
    if np.all(factors != 0):
        return np.array(settings.weight_decay, np.float32)
    return np.where(factors == 0, 0, settings.weight_decay).astype(np.float32)
