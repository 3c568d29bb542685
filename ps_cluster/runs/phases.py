"""Compute from the ledger's rows (dtype ROW) how long each phase of a step took. No TensorFlow."""

from __future__ import annotations

import numpy as np

from ps_cluster.runs.ledger import NOT_SCHEDULED

# The boundaries of PHASES.
PHASE_COLUMNS = (
    "asked_time", "admitted_time", "pulled_time", "computed_time", "pushed_time", "entered_time", "applied_time",
)  # fmt: skip
# "pushes" includes the wait of a push for the critical section.
PHASES = ("waits", "pulls", "computes", "slow on purpose", "pushes", "applies")
# What a worker does between two steps. "idle": nothing. "dispatch": a scheduled dispatch is on its way to the worker.
# "returns": within a dispatch, the parameter server's reply is on its way back. In modes without waits the reply brings the
# next parameters.
GAPS = ("idle", "dispatch", "returns")


def phase_times(rows: np.ndarray) -> np.ndarray:
    """Return when each phase began and the last one ended, float64 [phases + 1, steps], unix seconds."""
    return np.stack([rows[name] for name in PHASE_COLUMNS])


def gap_times(rows: np.ndarray) -> np.ndarray:
    """Return when each of GAPS before a step began and the last one ended, float64 [gaps + 1, steps], unix seconds.

    A worker is free from its last update on. Before its first step it is free from the time when the first worker asked
    for parameters. The gap "dispatch" begins when the worker is free and the dispatch is scheduled.
    """
    asked = rows["asked_time"]
    free, handed, received = asked.copy(), asked.copy(), asked.copy()
    # The clock of the parameter server, from which applied_time is, may differ from the worker's.
    done = np.maximum(rows["applied_time"], rows["pushed_time"])
    for worker in np.unique(rows["worker"]):
        mine = np.flatnonzero(rows["worker"] == worker)
        mine = mine[np.argsort(asked[mine], kind="stable")]
        scheduled = rows["scheduled_time"][mine]
        free[mine] = np.minimum(np.append(asked.min(), done[mine[:-1]]), asked[mine])
        another = np.diff(scheduled, prepend=NOT_SCHEDULED) != 0
        handed[mine] = np.where(another, np.clip(scheduled, free[mine], asked[mine]), free[mine])
        received[mine] = np.where(another, asked[mine], free[mine])
    return np.stack([free, handed, received, asked])


def phase_shares(rows: np.ndarray) -> dict[int, dict[str, float]]:
    """Return worker → phase or gap → its share of the time from the first pull to the last update.

    The shares of a worker sum to 1. Without rows there are no workers.
    """
    times, gaps = phase_times(rows), gap_times(rows)
    by_worker = {}
    for worker in np.unique(rows["worker"]):
        mine = rows["worker"] == worker
        # applied_time is from the clock of the parameter server, which may be behind that of the worker.
        seconds = np.maximum(np.diff(times[:, mine], axis=0), 0).sum(axis=1)
        _, dispatch, returns = np.diff(gaps[:, mine], axis=0).sum(axis=1)
        shares = np.array([*seconds, returns, dispatch]) / (times[-1].max() - times[0].min())
        idle = max(0.0, 1 - float(shares.sum()))
        by_worker[int(worker)] = dict(zip((*PHASES, "returns", "dispatch", "idle"), [*shares.tolist(), idle]))
    return by_worker
