"""Compute how many steps a worker is handed at once."""

from __future__ import annotations

from typing import Literal

# A dispatch costs the chief 1 to 2 ms (docs/results.md, configs/simulate/) and its worker a round trip. The more steps
# it has, the more are computed twice when a worker dies.
DISPATCH_S, FEWEST, MOST = 0.5, 4, 64
CHIEF_PER_S = 200  # dispatches per second to all workers together that the chief can easily make


def dispatch_size(setting: int | Literal["auto"], *, workers: int, per_second: float, left: float) -> int:
    """Return how many steps (or rounds) a worker is handed at once.

    Args:
      setting: the number, or "auto": about `DISPATCH_S` seconds of work, or more where there are too many workers for
        the chief; less towards the end, so that no worker still has much to do while the others have nothing.
      workers: the number of workers.
      per_second: steps (or rounds) per second of one worker; 0 while unknown.
      left: steps (or rounds) left for each worker.
    """
    if setting != "auto":
        return setting
    wanted = min(max(FEWEST, per_second * max(DISPATCH_S, workers / CHIEF_PER_S)), MOST)
    return int(max(1, min(wanted, left / 2)))
