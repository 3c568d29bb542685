"""Find out from a ledger which updates the workers had seen when they began their steps."""

import numpy as np


def unseen(rows, lag):
    """Return where a worker began a step too early for a clock bound of `lag`.

    Args:
      rows: "worker", "version" and "staleness" of all updates, as vectors by name.
    Returns:
      A list of (worker, its clock when it began the step, another worker, how many updates of the other worker it
        should have seen, how many it had seen).
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
