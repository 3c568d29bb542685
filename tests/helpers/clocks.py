"""What workers had seen when they began a step, read out of a ledger."""

import numpy as np


def unseen(rows, lag):
    """Updates that somebody had not seen who began a step, though a bound of `lag` on clocks promises it.

    Args:
      rows: "worker", "version" and "staleness" of all updates, as vectors by name.
    Returns:
      (worker, its clock when it began, another one, updates of that one that were due, and seen) of each.
    """
    order = np.argsort(rows["version"])
    workers, made = (np.asarray(rows[name])[order] for name in ("worker", "version"))
    read = made - 1 - np.asarray(rows["staleness"])[order]
    missed = []
    for worker in np.unique(workers):
        for clock, version in enumerate(read[workers == worker]):
            for other in set(workers) - {worker}:
                theirs = made[workers == other]
                due, seen = min(clock - lag, len(theirs)), int((theirs <= version).sum())
                if seen < due:
                    missed.append((int(worker), clock, int(other), due, seen))
    return missed
