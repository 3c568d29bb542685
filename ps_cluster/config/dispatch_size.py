"""How many steps a worker is handed at once."""

from __future__ import annotations

from typing import Literal

# A dispatch costs the chief 1 to 2 ms (docs/results.md, configs/simulate/) and its worker a round trip. With more steps in
# it, more are done twice when a worker dies.
DISPATCH_S, FEWEST, MOST = 0.5, 4, 64
CHIEF_PER_S = 200  # dispatches a second that the chief gives to all workers together with time to spare


def dispatch_size(setting: int | Literal["auto"], *, workers: int, per_second: float, left: float) -> int:
    """Steps (or rounds) that a worker is handed at once.

    Args:
      setting: the number, or "auto": what takes a worker about `DISPATCH_S`, or longer where there are too many workers
        for the chief; less towards the end, so that no worker has much to do while the others have nothing.
      workers: how many there are.
      per_second: steps (or rounds) a second of one worker, 0 while it is not known.
      left: steps (or rounds) that are left for each worker.
    """
    if setting != "auto":
        return setting
    wanted = min(max(FEWEST, per_second * max(DISPATCH_S, workers / CHIEF_PER_S)), MOST)
    return int(max(1, min(wanted, left / 2)))
