"""Staleness method predict: a worker pulls the weights that are expected at the time when its gradient arrives."""

from __future__ import annotations

import numpy as np

from ps_cluster.config.equations import ArrivedParts, CorrectedParts, Slots
from ps_cluster.config.lazy import tf
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Arrival, Corrected, Correction

MEMORY = 0.9  # the decay of the running mean of a worker's staleness


class PredictCorrection(Correction[StalenessSettings]):
    """Gives a worker the weights w + τ d, which are the expected weights at the time when its gradient arrives.

    d is the newest step of the weights, and τ is the running mean of the worker's staleness. With momentum or Adam, the
    next update takes the step d again if its gradient equals the running mean of the gradients. For momentum this is
    SpecTrain (Chen, Yang and Cheng 2018, arXiv:1809.02839), for Adam the prediction of XPipe (Guan et al. 2019,
    arXiv:1911.04610). Both were made for the stages of a pipeline, where τ is known. Here d is measured, so it contains
    weight decay too, and each worker has a separate τ. With a rule without momentum, the prediction uses only the
    newest gradient.

    τ starts at 0, also after a restore, because checkpoints do not contain it.
    """

    needs_step = True

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, most_workers: int):
        super().__init__(settings, weights, workers, most_workers)
        self._staleness = tf.Variable(tf.zeros([most_workers]), trainable=False)
        self._step = tf.Variable(tf.zeros_like(weights), trainable=False)
        self.slots, self.of_version = {"step": self._step}, (self._step,)
        self.pull_state = {"step": self._step, "staleness": self._staleness}

    def given(self, worker: tf.Tensor, weights: tf.Tensor, *of_version: tf.Tensor) -> tf.Tensor:
        (step,) = of_version
        return weights + self._staleness.sparse_read(worker) * step

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        before = self._staleness.sparse_read(arrival.worker)
        mean = MEMORY * before + (1 - MEMORY) * tf.cast(arrival.staleness, before.dtype)
        updated = self._staleness.scatter_update(tf.IndexedSlices(mean[None], arrival.worker[None]))
        with tf.control_dependencies([updated]):
            return tf.identity(gradient), None

    def after_update(self, before: tf.Tensor, learning_rate: tf.Tensor) -> list[tf.Operation]:
        return [self._step.assign(self._weights.read_value() - before, read_value=False)]


class PredictMethod(StalenessMethod[StalenessSettings]):
    name = "predict"
    description = "a worker gets the weights that are expected at the time when its gradient arrives"
    works_by_row = True  # rows are not predicted, because mostly no other worker changes them in the meantime
    correction = PredictCorrection

    def equation(self, settings: StalenessSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient unchanged, because this method acts only at the pull."""
        return CorrectedParts(arrived.gradient)

    def pulled_weights(self, at_pull: Slots) -> np.ndarray:
        """Return the weights plus the mean staleness of the worker times the newest step of the weights."""
        predicted: np.ndarray = at_pull["weights"] + at_pull["staleness"] * at_pull["step"]
        return predicted
