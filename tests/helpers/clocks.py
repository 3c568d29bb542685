"""Check from a ledger which updates workers had seen when they began a step."""

import numpy as np


def unseen(rows, lag):
    """Return the updates that a worker had not seen when it began a step, against a clock bound of `lag`.

    Args:
      rows: "worker", "version" and "staleness" of all updates, as vectors by name.
    Returns:
      A list of (worker, its clock when it began, another worker, that one's updates due, and those seen).
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
