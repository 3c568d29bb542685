"""Staleness method same_version: each change of the weights needs K gradients computed from the same weights."""

from __future__ import annotations

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.lazy import tf
from ps_cluster.config.schema import RunConfig
from ps_cluster.server.capabilities import Capabilities
from ps_cluster.server.staleness.correction import Arrival, Corrected
from ps_cluster.server.staleness.gather import GatherCorrection, GatherMethod, GatherSettings


class SameVersionCorrection(GatherCorrection):
    """Changes the weights by the mean of K gradients, once K gradients computed from the current weights have arrived.

    A gradient that was computed from older weights is dropped.

    This is Rennala SGD (Tyurin and Richtárik 2023, arXiv:2305.12387, method 1). In the paper the worker of a dropped
    gradient continues with a different step. Here the worker computes the same step again.
    """

    capabilities = Capabilities(drops=True)

    def accepts(self, arrival: Arrival) -> tf.Tensor:
        return tf.equal(self.changes_since(arrival), 0)

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        return gradient, None


class SameVersionMethod(GatherMethod):
    name = "same_version"
    description = (
        "the weights change with every K-th gradient; a gradient computed from older weights is dropped, and its step "
        "computed again"
    )
    correction = SameVersionCorrection

    def equation(self, settings: GatherSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient unchanged. A gradient computed from older weights is dropped instead of applied."""
        return CorrectedParts(arrived.gradient)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if config.chosen_mode.delay(config):
            raise ValueError(
                f"mode.simulate_workers: got {config.chosen_mode.emulated_workers(config)}: no gradient would be "
                f"computed from the newest weights, and staleness.method {self.name} drops all others: "
                "leave mode.simulate_workers out"
            )
