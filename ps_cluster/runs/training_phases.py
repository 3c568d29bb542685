"""Name the phases of a training. The leader writes its phase into each progress row."""

from __future__ import annotations

from typing import Literal

Phase = Literal["starting", "connecting", "building", "training", "saving", "draining", "writing", "ended"]
"""The phases in their usual order. In "saving", the leader repeats its previous progress row until a state is saved. In
"writing", the leader checks the rows of the ledger, and writes them as CSV files."""

NOT_BEGUN: tuple[Phase, ...] = ("starting", "connecting", "building")
UNDER_WAY: tuple[Phase, ...] = ("training", "saving", "draining")  # updates are expected, and a row every half second
# A leader with nothing left to train goes straight to "writing".
BEGUN: tuple[Phase, ...] = (*UNDER_WAY, "writing", "ended")
