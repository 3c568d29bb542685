"""Name the phases of a training. The leader writes its phase into each row of progress."""

from __future__ import annotations

from typing import Literal

Phase = Literal["starting", "connecting", "building", "training", "saving", "draining", "writing", "ended"]
"""In the usual order. "saving": the row before it is repeated while a state is being saved. "writing": the ledger's tables."""

NOT_BEGUN: tuple[Phase, ...] = ("starting", "connecting", "building")
UNDER_WAY: tuple[Phase, ...] = ("training", "saving", "draining")  # updates are expected, and a row each half a second
# A leader with nothing left to train goes straight to "writing".
BEGUN: tuple[Phase, ...] = (*UNDER_WAY, "writing", "ended")
