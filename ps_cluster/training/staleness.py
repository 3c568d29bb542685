"""Correct a stale gradient before a parameter server applies it: one class a method (catalogue/staleness.py).

Notation: w are the weights now, w_bak those that the worker was given at its last pull, g its gradient.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ps_cluster.catalogue.staleness import StalenessSettings

EPSILON = 1e-7  # of dc_adaptive
STEP_DECAY = 0.999  # of gap_aware's running average of the step

Corrected = tuple[tf.Tensor, tf.Tensor | None]
"""(gradient float32 [n], the share that it counts for, see `UpdateRule.apply`)."""


class Correction:
    """Correct nothing, and the base of what corrects something. Create it on the slice's device.

    All calls of one method belong in the slice's critical section, and what that section returns has to depend on the
    operations that `on_pull` and `after_update` return.

    Attributes:
      needs_step: whether `after_update` has something to do.
      slots: name to float32 [n], [workers, n], or [1] for one number of the slice; what belongs in a checkpoint.
    """

    needs_step = False

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int):
        """`weights`: float32 [n], those that the update rule changes. `workers`: worker ids are 0 .. workers - 1."""
        self._settings: Any = settings
        self._weights = weights
        self.slots: dict[str, tf.Variable] = {}

    def on_pull(self, worker: tf.Tensor, given: tf.Tensor) -> list[tf.Operation]:
        """Remember what a worker was given.

        Args:
          worker: int64 [].
          given: float32 [n]. Not rounded to the wire's dtype: a rounding error would count as staleness.
        """
        return []

    def correct(self, gradient: tf.Tensor, worker: tf.Tensor, staleness: tf.Tensor) -> Corrected:
        """Return the gradient to apply, and the share that it counts for.

        The gradient comes after everything that the method reads and writes, so an update that needs it comes later too.

        Args:
          gradient: float32 [n]. worker: int64 [].
          staleness: int64 [], updates of this slice between the pull and now, 0 or more.
        """
        return gradient, None

    def after_update(self, before: tf.Tensor, learning_rate: tf.Tensor) -> list[tf.Operation]:
        """Learn the step that was taken.

        Call it under a control dependency on the update, with `before` read under one of the update on that read.

        Args:
          before: float32 [n], the weights before the update.
          learning_rate: float32 [], that of the update.
        """
        return []


class InverseStaleness(Correction):
    """Counts a gradient for 1 / staleness, and whole where that is 0.

    Zhang, Gupta, Lian and Liu 2016, "Staleness-aware Async-SGD for Distributed Deep Learning", arXiv:1511.05950: plain SGD
    with the learning rate of each gradient divided by its own staleness. (Its text could not be had; this is its rule as others
    quote it.) What that means for other rules and for weight decay is this project's choice: see `UpdateRule.apply`. Where
    the staleness is always the same, it is the learning rate over the staleness with every rule.
    """

    def correct(self, gradient, worker, staleness):
        return gradient, 1 / tf.cast(tf.maximum(staleness, 1), gradient.dtype)


class _WithBackups(Correction):
    """A method that needs w - w_bak.

    What the workers were given is not for a checkpoint: a pull fills a row again, and until then its worker's gradients
    are not corrected.
    """

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int):
        super().__init__(settings, weights, workers)
        self._backups = tf.Variable(tf.zeros([workers, *weights.shape]), trainable=False)
        # Rows that start as the weights would not do: a restore changes the weights, and a gradient that was computed
        # before the parameter server's restart can arrive ahead of its worker's next pull.
        self._pulled = tf.Variable(tf.zeros([workers], tf.bool), trainable=False)

    def on_pull(self, worker, given):
        return [
            self._backups.scatter_update(tf.IndexedSlices(given[None], worker[None])),
            self._pulled.scatter_update(tf.IndexedSlices(tf.constant([True]), worker[None])),
        ]

    def correct(self, gradient, worker, staleness):
        moved = self._weights.read_value() - self._backups.sparse_read(worker)
        moved = tf.where(self._pulled.sparse_read(worker), moved, tf.zeros_like(moved))
        return self._corrected(gradient, moved, worker)

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        """`gradient` and `moved` (w - w_bak): float32 [n]."""
        raise NotImplementedError


class ConstantDelayCompensation(_WithBackups):
    """DC-ASGD-c: g + lambda g*g*(w - w_bak), elementwise; lambda is `strength`.

    Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation", arXiv:1609.08326, algorithm 2.
    """

    def _corrected(self, gradient, moved, worker):
        return gradient + self._settings.strength * gradient * gradient * moved, None


class AdaptiveDelayCompensation(_WithBackups):
    """DC-ASGD-a: as DC-ASGD-c with a lambda of each weight, lambda_0 / sqrt(MeanSquare + 1e-7); lambda_0 is `strength`.

    MeanSquare = m MeanSquare + (1 - m) g*g, one for each worker, from 0 and without a bias correction; m is `decay`. It
    holds the gradient being corrected already. Zheng et al. 2017, arXiv:1609.08326; checked against the authors' code
    (Microsoft's DC-ASGD for Multiverso, dcasgda_updater.h), which keeps one for each worker.
    """

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int):
        super().__init__(settings, weights, workers)
        self.slots = {"mean_square": tf.Variable(tf.zeros([workers, *weights.shape]), trainable=False)}

    def _corrected(self, gradient, moved, worker):
        slot, decay, square = self.slots["mean_square"], self._settings.decay, gradient * gradient
        mean_square = decay * slot.sparse_read(worker) + (1 - decay) * square
        with tf.control_dependencies([slot.scatter_update(tf.IndexedSlices(mean_square[None], worker[None]))]):
            return gradient + self._settings.strength * tf.math.rsqrt(mean_square + EPSILON) * square * moved, None


class GapAware(_WithBackups):
    """Counts a gradient for 1 / (1 + |w - w_bak| / C), elementwise, where C is the size of a step at the highest rate.

    Barkai, Hakimi and Schuster 2020, "Gap-Aware Mitigation of Gradient Staleness", arXiv:1909.10802. The paper's text could
    not be had; the form was taken from an implementation of colleagues of its authors (github.com/saareliad/FTPipe,
    `GapAware`):

      C = R sqrt(V / (1 - 0.999^t)),  V = 0.999 V + 0.001 (step / rate)^2,  V = 0 at t = 0

    R is the highest learning rate so far. So C does not fall with the learning rate: what makes a gradient wrong is how far
    the weights are from where it was taken, and late in a schedule they hardly move.

    Here `step` is the change that the t-th update made to the weight and `rate` that update's learning rate. There step / rate
    is the momentum buffer (the gradient, without momentum); for plain SGD and momentum these are the same but for weight
    decay and for a rate that changes within the buffer's memory, and Adam has one, too. There 1e-8 R keeps C above 0; here
    a weight with C = 0, as all have before the first update, is not corrected. Weight decay shrinks along, as there.
    """

    needs_step = True

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int):
        super().__init__(settings, weights, workers)
        # "updates" is 1 - 0.999^t, as the same running average of ones.
        zeros = {"step_square": tf.zeros_like(weights), "updates": tf.zeros([1]), "highest_rate": tf.zeros([1])}
        self.slots = {name: tf.Variable(value, trainable=False) for name, value in zeros.items()}

    def _corrected(self, gradient, moved, worker):
        square, updates, highest = (variable.read_value() for variable in self.slots.values())
        step = highest * tf.sqrt(tf.math.divide_no_nan(square, updates))
        share = 1 / (tf.math.divide_no_nan(tf.abs(moved), step) + 1)
        with tf.control_dependencies([share]):
            return tf.identity(gradient), share

    def after_update(self, before, learning_rate):
        step = tf.math.divide_no_nan(self._weights.read_value() - before, learning_rate)
        highest = self.slots["highest_rate"]
        return [
            self._average("step_square", step * step),
            self._average("updates", tf.ones([1])),
            highest.assign(tf.maximum(highest.read_value(), learning_rate), read_value=False),
        ]

    def _average(self, name: str, value: tf.Tensor) -> tf.Operation:
        slot = self.slots[name]
        return slot.assign(STEP_DECAY * slot.read_value() + (1 - STEP_DECAY) * value, read_value=False)
