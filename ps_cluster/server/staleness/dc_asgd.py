"""Staleness methods dc_adaptive and dc_constant: delay compensation (Zheng et al. 2017, arXiv:1609.08326)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.setting_types import Factor, Fraction
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Corrected, WithBackups

EPSILON = 1e-7


class AdaptiveSettings(StalenessSettings):
    strength: Factor = Field(
        default=2.0, description="Strength of the correction: lambda_0 of DC-ASGD-a (arXiv:1609.08326)."
    )
    decay: Fraction = Field(default=0.95, description="Decay of the running mean square of the gradients.")


class DcAdaptiveCorrection(WithBackups[AdaptiveSettings]):
    """DC-ASGD-a: as `DcConstantCorrection`, but with a lambda for each weight, lambda_0 / sqrt(MeanSquare + 1e-7).

    lambda_0 is `strength`. MeanSquare = m MeanSquare + (1 - m) g*g, where m is `decay`. It starts at 0, without a bias
    correction, and already includes the gradient that is being corrected. Each worker has a separate MeanSquare. The
    source is Zheng et al. 2017, arXiv:1609.08326. The method was checked against the authors' code (Microsoft's DC-ASGD
    for Multiverso, dcasgda_updater.h), which also keeps one MeanSquare for each worker.
    """

    capabilities = replace(WithBackups.capabilities, slots_per_worker=1)

    def __init__(self, settings: AdaptiveSettings, weights: tf.Variable, workers: int, most_workers: int):
        super().__init__(settings, weights, workers, most_workers)
        self.slots = {"mean_square": tf.Variable(tf.zeros([most_workers, *weights.shape]), trainable=False)}

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        slot, decay, square = self.slots["mean_square"], self._settings.decay, gradient * gradient
        mean_square = decay * slot.sparse_read(worker) + (1 - decay) * square
        with tf.control_dependencies([slot.scatter_update(tf.IndexedSlices(mean_square[None], worker[None]))]):
            return gradient + self._settings.strength * tf.math.rsqrt(mean_square + EPSILON) * square * moved, None


class DcAdaptiveMethod(StalenessMethod[AdaptiveSettings]):
    name = "dc_adaptive"
    description = "delay compensation with a separate lambda for each weight"
    Settings = AdaptiveSettings
    correction = DcAdaptiveCorrection

    def equation(self, settings: AdaptiveSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return g + lambda_0 / sqrt(MeanSquare + 1e-7) g*g*(w - w_bak), and the new value of the worker's MeanSquare.

        w is the current weights, and w_bak the weights that the worker had pulled.
        """
        square = arrived.gradient**2
        mean_square = settings.decay * arrived.slots["mean_square"] + (1 - settings.decay) * square
        strength = settings.strength / np.sqrt(mean_square + EPSILON)
        return CorrectedParts(arrived.gradient + strength * square * arrived.moved, slots={"mean_square": mean_square})


class ConstantSettings(StalenessSettings):
    # The paper's value (Zheng et al. 2017, arXiv:1609.08326).
    strength: Factor = Field(
        default=0.04, description="Strength of the correction: lambda of DC-ASGD-c (arXiv:1609.08326)."
    )


class DcConstantCorrection(WithBackups[ConstantSettings]):
    """DC-ASGD-c: g + lambda g*g*(w - w_bak), elementwise, where lambda is `strength`.

    w is the current weights, w_bak the weights that the worker had pulled, and g the worker's gradient.

    Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation", arXiv:1609.08326,
    algorithm 2.
    """

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        return gradient + self._settings.strength * gradient * gradient * moved, None


class DcConstantMethod(StalenessMethod[ConstantSettings]):
    name = "dc_constant"
    description = "delay compensation with a constant lambda"
    Settings = ConstantSettings
    correction = DcConstantCorrection

    def equation(self, settings: ConstantSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return g + lambda g*g*(w - w_bak). w is the current weights, w_bak the weights that the worker had pulled."""
        return CorrectedParts(arrived.gradient + settings.strength * arrived.gradient**2 * arrived.moved)
