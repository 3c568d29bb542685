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
      setting: the number, or "auto": about `DISPATCH_S` seconds of work. A dispatch is longer if the chief has many
        workers. It is shorter towards the end, so that no worker has many steps left when the others have finished.
      workers: the number of workers.
      per_second: the steps (or rounds) of one worker per second; 0 while unknown.
      left: the steps (or rounds) that are left for each worker.
    """
    if setting != AUTO:
        return setting
    wanted = min(max(FEWEST, per_second * max(DISPATCH_S, workers / CHIEF_PER_S)), MOST)
    return int(max(1, min(wanted, left / 2)))
