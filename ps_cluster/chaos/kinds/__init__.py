"""The kinds of fault, objects that know all about their kind (chaos/kind.py). A new file here needs no other change."""

from __future__ import annotations

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.chaos.kind import FaultKind

FAULTS: Kinds[FaultKind] = Kinds("kind of fault", FaultKind, "ps_cluster.chaos.kinds", "ps_cluster.faults")
