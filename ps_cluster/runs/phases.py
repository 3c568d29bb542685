"""Compute from the ledger's rows (dtype ROW) how long each phase of a step took. No TensorFlow."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ps_cluster.runs.ledger import NOT_SCHEDULED

Value = TypeVar("Value")

# The boundaries of PHASES.
PHASE_COLUMNS = (
    "asked_time", "admitted_time", "pulled_time", "computed_time", "pushed_time", "entered_time", "applied_time",
)  # fmt: skip


class Phases(NamedTuple, Generic[Value]):
    """A value for each phase of a step, in order. `pushes` includes the wait of a push for the critical section."""

    waits: Value
    pulls: Value
    computes: Value
    slow_on_purpose: Value
    pushes: Value
    applies: Value


class TimeShares(NamedTuple):
    """The shares of a worker's time that it spent in each phase. They sum to 1.

    The time lasts from the first pull of any worker to the last update of any worker. A dispatch is one or more steps
    that the chief sends to a worker together.

    Attributes:
      returns: the share between two steps of the same dispatch, while the parameter server's reply is on its way back
        to the worker. In modes without waits, the reply contains the parameters for the next step.
      dispatch: the share in which a scheduled dispatch is on its way to the worker.
      idle: the share in which the worker has nothing to do.
    """

    phases: Phases[float]
    returns: float
    dispatch: float
    idle: float

    @property
    def busy(self) -> float:
        """The share in which the worker computed, or was slow on purpose."""
        return self.phases.computes + self.phases.slow_on_purpose

    @property
    def by_name(self) -> dict[str, float]:
        """All shares by name: those of the phases (PHASES), and those of the gaps between steps (GAPS)."""
        return dict(
            zip((*PHASES, *reversed(GAPS)), (*self.phases, self.returns, self.dispatch, self.idle), strict=True)
        )


# The names that people read.
PHASES = tuple(name.replace("_", " ") for name in Phases._fields)
GAPS = ("idle", "dispatch", "returns")  # in the order in which they follow each other


def phase_times(rows: np.ndarray) -> np.ndarray:
    """Return when each phase began and when the last phase ended, float64 [phases + 1, steps], unix seconds."""
    return np.stack([rows[name] for name in PHASE_COLUMNS])


def phase_seconds(rows: np.ndarray) -> Phases[np.ndarray]:
    """Return how long each phase took, float64 [steps] each."""
    return Phases(*np.diff(phase_times(rows), axis=0))


def gap_times(rows: np.ndarray) -> np.ndarray:
    """Return the start times of the gaps before each step (idle, dispatch and returns), and the end of the last gap.

    The times are unix seconds, float64 [gaps + 1, steps].

    A worker becomes free when its previous update is applied. Before its first step, it counts as free from the time
    of the first request for parameters by any worker. The gap "dispatch" begins as soon as the worker is free and the
    dispatch is scheduled.
    """
    asked = rows["asked_time"]
    free, handed, received = asked.copy(), asked.copy(), asked.copy()
    # applied_time is from the clock of the parameter server, which may differ from the clock of the worker.
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


def time_shares(rows: np.ndarray) -> dict[int, TimeShares]:
    """Return how each worker spent its time, by the index of the worker. It is empty if there are no rows."""
    times, gaps = phase_times(rows), gap_times(rows)
    by_worker = {}
    for worker in np.unique(rows["worker"]):
        mine = rows["worker"] == worker
        # applied_time is from the clock of the parameter server, which may be behind that of the worker.
        seconds = np.maximum(np.diff(times[:, mine], axis=0), 0).sum(axis=1)
        _, dispatch, returns = np.diff(gaps[:, mine], axis=0).sum(axis=1)
        shares = np.array([*seconds, returns, dispatch]) / (times[-1].max() - times[0].min())
        *phases, returned, dispatched = shares.tolist()
        by_worker[int(worker)] = TimeShares(
            Phases(*phases), returned, dispatched, idle=max(0.0, 1 - float(shares.sum()))
        )
    return by_worker
