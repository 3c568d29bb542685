"""Describe the start of a leader: alone, with tasks that others start, or by a launcher that watches all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Leading:
    """The way a leader was started. The default: by a launcher on the same machine.

    Attributes:
      alone: no launcher watches the other tasks. The leader tells them how training ends, and gives the steps of a
        silent worker to others.
      epoch: the number of its claim (run/leaders.py); 0 without one.
      least_workers: training begins with as many workers; the others may come later. None: all.
      wait_s: how long an evaluator waits for a sign of life; a launcher limits the wait itself.
      silent_after_s: a dispatch without an update for so long is given to another worker too.
    """

    alone: bool = False
    epoch: int = 0
    least_workers: int | None = None
    silent_after_s: float = 60.0
    wait_s: float = math.inf
