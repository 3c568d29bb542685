"""Staleness method inverse: a gradient counts for 1 / staleness."""

from __future__ import annotations

from pydantic import Field

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Arrival, Corrected, Correction


class InverseSettings(StalenessSettings):
    fades_over: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="The scaling fades over this many updates, and then gradients are no longer scaled; null: it never "
        "fades.",
    )


class InverseCorrection(Correction[InverseSettings]):
    """Scales a gradient by 1 / staleness. A gradient with staleness 0 counts fully.

    Zhang, Gupta, Lian and Liu 2016, "Staleness-aware Async-SGD for Distributed Deep Learning", arXiv:1511.05950, use
    plain SGD and divide the learning rate of each gradient by the gradient's staleness. (The paper's text was not
    available. This is the method as other papers quote it.) How it works with other update rules and with weight decay
    is this project's choice: see `Gradient`. If the staleness is constant, the effect is the same as dividing the
    learning rate by the staleness, with every rule.

    With `fades_over` K the scale is 1 / staleness^p, where p falls from 1 to 0 within K updates (PipeMare, Yang et al.
    2021, arXiv:1910.05124, technique 1, for the fixed delays of a pipeline). PipeMare's technique 2 is a
    correction for forward and backward passes that use different weights. It is not needed here, because both passes
    use the pulled weights.
    """

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        delay = tf.cast(tf.maximum(arrival.staleness, 1), gradient.dtype)
        if (updates := self._settings.fades_over) is None:
            return gradient, 1 / delay
        power = tf.maximum(0.0, 1 - tf.cast(arrival.now, gradient.dtype) / updates)
        return gradient, delay**-power


class InverseMethod(StalenessMethod[InverseSettings]):
    name = "inverse"
    description = "a gradient counts for 1 / staleness"
    suits_local_steps = works_by_row = True
    Settings = InverseSettings
    correction = InverseCorrection

    def equation(self, settings: InverseSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient and its scale 1 / staleness^p. p is 1, or falls from 1 to 0 if `fades_over` is set."""
        power = 1.0
        if settings.fades_over is not None:
            power = max(0.0, 1 - arrived.updates_before / settings.fades_over)
        return CorrectedParts(arrived.gradient, max(1, arrived.staleness) ** -power)
