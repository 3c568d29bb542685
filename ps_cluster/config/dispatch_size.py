"""Compute how many steps the chief sends to a worker at once."""

from __future__ import annotations

from typing import Literal

from ps_cluster.config.setting_types import AUTO

# Each dispatch takes some of the chief's time (measured in docs/results.md), and its worker waits for a round trip. But
# the more steps a dispatch has, the more steps are computed twice when a worker dies.
DISPATCH_S, FEWEST, MOST = 0.5, 4, 64
CHIEF_PER_S = 200  # the dispatches that the chief can easily send per second, to all workers together


def dispatch_size(setting: int | Literal["auto"], *, workers: int, per_second: float, left: float) -> int:
    """Return the number of steps (or rounds) in the next dispatch to a worker.

    Args:
      setting: a fixed number, or "auto" for about `DISPATCH_S` seconds of work: more if the chief has many workers, and
        less towards the end of training, so that no worker has many steps left when the others have finished.
      workers: the number of workers.
      per_second: the number of steps (or rounds) of one worker per second; 0 while it is unknown.
      left: the number of remaining steps (or rounds) per worker.
    """
    if setting != AUTO:
        return setting
    wanted = min(max(FEWEST, per_second * max(DISPATCH_S, workers / CHIEF_PER_S)), MOST)
    return int(max(1, min(wanted, left / 2)))
