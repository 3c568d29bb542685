"""Staleness method gap_aware: a gradient counts for less, the more the weights have changed since its worker's pull."""

from __future__ import annotations

import numpy as np

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Corrected, WithBackups

STEP_DECAY = 0.999  # the decay of the running mean square of the steps


class GapAwareCorrection(WithBackups[StalenessSettings]):
    """Scales a gradient by 1 / (1 + |w - w_bak| / C), elementwise, where C is the size of a step at the highest rate.

    w is the current weights, and w_bak the weights that the worker had pulled.

    Barkai, Hakimi and Schuster 2020, "Gap-Aware Mitigation of Gradient Staleness", arXiv:1909.10802. The paper's text
    was not available. This form follows an implementation by colleagues of its authors (github.com/saareliad/FTPipe,
    `GapAware`):

      C = R sqrt(V / (1 - 0.999^t)),  V = 0.999 V + 0.001 (step / rate)^2,  V = 0 at t = 0

    R is the highest learning rate so far, so C does not fall when a schedule lowers the learning rate. At a low rate
    the weights hardly move between a pull and its push, so a stale gradient has a small error and is hardly scaled.

    Here `step` is the change of the weight by the t-th update, and `rate` is that update's learning rate. In FTPipe,
    step / rate is the momentum buffer, or without momentum the gradient. For plain SGD and momentum, step / rate has
    the same size here, with two exceptions. A step includes weight decay. And for a while after a change of the
    learning rate, a step with momentum still contains earlier gradients times the earlier rate. This form also works
    for Adam. FTPipe keeps C above 0 with 1e-8 R. Here the gradient of a weight is not corrected while C = 0, as it is
    before the first update. Weight decay is scaled too, as in FTPipe.
    """

    needs_step = True

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, most_workers: int):
        super().__init__(settings, weights, workers, most_workers)
        # "updates" is 1 - 0.999^t, computed as a running average of ones with the same decay.
        zeros = {"step_square": tf.zeros_like(weights), "updates": tf.zeros([]), "highest_rate": tf.zeros([])}
        self.slots = {name: tf.Variable(value, trainable=False) for name, value in zeros.items()}

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        square, updates, highest = (variable.read_value() for variable in self.slots.values())
        step = highest * tf.sqrt(tf.math.divide_no_nan(square, updates))
        gradient_scale = 1 / (tf.math.divide_no_nan(tf.abs(moved), step) + 1)
        with tf.control_dependencies([gradient_scale]):
            return tf.identity(gradient), gradient_scale

    def after_update(self, before: tf.Tensor, learning_rate: tf.Tensor) -> list[tf.Operation]:
        step = tf.math.divide_no_nan(self._weights.read_value() - before, learning_rate)
        highest = self.slots["highest_rate"]
        return [
            self._average("step_square", step * step),
            self._average("updates", tf.ones([])),
            highest.assign(tf.maximum(highest.read_value(), learning_rate), read_value=False),
        ]

    def _average(self, name: str, value: tf.Tensor) -> tf.Operation:
        slot = self.slots[name]
        return slot.assign(STEP_DECAY * slot.read_value() + (1 - STEP_DECAY) * value, read_value=False)


class GapAwareMethod(StalenessMethod[StalenessSettings]):
    name = "gap_aware"
    description = "a gradient counts for less, the more the weights have changed since its worker's pull"
    correction = GapAwareCorrection

    def equation(self, settings: StalenessSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient, and for each weight its scale 1 / (1 + |w - w_bak| / C), see `GapAwareCorrection`."""
        square, updates = arrived.slots["step_square"], float(arrived.slots["updates"][0])
        usual = float(arrived.slots["highest_rate"][0]) * np.sqrt(square / updates if updates else 0 * square)
        gap = np.divide(np.abs(arrived.moved), usual, out=np.zeros_like(usual), where=usual > 0)
        return CorrectedParts(arrived.gradient, 1 / (1 + gap))
