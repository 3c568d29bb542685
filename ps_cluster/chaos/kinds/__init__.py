"""The kinds of fault (see chaos/kind.py). A new file here is found without any other change."""

from __future__ import annotations

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.chaos.kind import FaultKind

FAULTS: Kinds[FaultKind] = Kinds("kind of fault", FaultKind, "ps_cluster.chaos.kinds", "ps_cluster.faults")
