"""The kinds of fault (see tools/chaos/kind.py). A new file here is found without any other change."""

from __future__ import annotations

import sys

from ps_cluster.config.registry import Registry
from ps_cluster.tools.chaos.kind import FaultKind

FAULTS: Registry[FaultKind] = Registry("kind of fault", FaultKind, lambda: sys.modules[__name__], "ps_cluster.faults")
