"""The modes of training, one file each."""

from __future__ import annotations

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.modes.mode import Mode, ModeSettings, Waits

MODES: Kinds[Mode] = Kinds("mode", Mode, "ps_cluster.catalogue.modes", "ps_cluster.modes")

__all__ = ["MODES", "Mode", "ModeSettings", "Waits"]
