"""Staleness method none."""

from __future__ import annotations

from ps_cluster.catalogue.staleness import StalenessMethod


class Nothing(StalenessMethod):
    name = "none"
    says = "stale gradients are applied as they are"


NONE = Nothing()
