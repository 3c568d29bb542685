"""Staleness method delay_adaptive: a gradient that is staler than usual counts for less."""

from __future__ import annotations

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Arrival, Corrected, Correction


class DelayAdaptiveCorrection(Correction[StalenessSettings]):
    """Scales a gradient by W / max(W, τ + 1), where τ is its staleness and W the number of workers.

    So a gradient counts fully up to a staleness of W - 1, which is the mean staleness with W workers. The source is
    Mishchenko, Bach, Even and Woodworth 2022, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays",
    arXiv:2206.07638, in the form of the authors' experiments (github.com/konstmish/asynchronous_sgd): learning rate * W
    / max(W, delay), where a delay of 1 is a staleness of 0. Koloskova, Stich and Jaggi 2022, arXiv:2206.08307, also
    keep the full rate for delays up to the mean number of gradients in flight. For longer delays they divide the rate
    by the delay.
    """

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        delay = tf.cast(arrival.staleness + 1, gradient.dtype)
        return gradient, self._workers / tf.maximum(delay, self._workers)


class DelayAdaptiveMethod(StalenessMethod[StalenessSettings]):
    name = "delay_adaptive"
    description = "a gradient whose staleness is at least the number of workers counts for less"
    suits_local_steps = True
    correction = DelayAdaptiveCorrection

    def equation(self, settings: StalenessSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient, and W / max(W, staleness + 1), the factor by which the update multiplies it."""
        return CorrectedParts(arrived.gradient, arrived.workers / max(arrived.workers, arrived.staleness + 1))
