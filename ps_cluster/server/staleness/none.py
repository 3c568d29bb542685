"""Staleness method none: stale gradients are applied unchanged."""

from __future__ import annotations

from ps_cluster.config.equations import ArrivedParts, CorrectedParts
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.server.staleness.correction import Correction


class NoneMethod(StalenessMethod[StalenessSettings]):
    name = "none"
    description = "stale gradients are applied unchanged"
    correction: type[Correction[StalenessSettings]] = Correction
    suits_local_steps = works_by_row = True

    def equation(self, settings: StalenessSettings, arrived: ArrivedParts) -> CorrectedParts:
        """Return the gradient unchanged."""
        return CorrectedParts(arrived.gradient)
