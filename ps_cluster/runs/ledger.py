"""The columns of the ledger, and the joining of several slices' rows into one row per step. No TensorFlow.

A row belongs to a step id. It is written when the step's gradient is accepted, in the same critical section. An
accepted gradient is applied at once; only in rounds the update comes with the last gradient. Each parameter server
keeps its own ledger, since each applies its own slice.
"""

from __future__ import annotations

import numpy as np
from pydantic import model_validator

from ps_cluster.files.values import Malformed
from ps_cluster.runs.rows import MOST, MOST_INDEX, Count, Row

# The norms of what the earlier pushes of the worker had left out, and of what this push leaves out; 0 if nothing was.
REMAINDER_COLUMNS = ("remainder_before", "remainder_after")
# What the parameter server knows, then what the worker pushed with the gradient. Times are unix seconds.
# The update was made with the row's learning rate x `rate_factor` (`server.staleness.RateOfMoreWorkers`).
STORE_COLUMNS = ("version", "staleness", "rate_factor", "entered_time", "applied_time")
# See `server.staleness.RateOfMoreWorkers`.
RATE_RETURNS_OVER = 100  # updates in which a lowered factor of the rate grows e-fold, once workers have left
HEARD_OF = 16  # updates for each worker that there ever was, within which one that takes part has one of its own
# The times of a step, in order: the chief schedules its dispatch; the worker asks for parameters (or has them already,
# because the push of the step before has brought them), is admitted (may have to wait), has pulled them, has computed,
# and pushes (later than computed where the worker is slow on purpose); on the parameter server the push enters the
# critical section, and there the update is applied.
WORKER_COLUMNS = (
    "worker", "pid", "examples", "ids_checksum", "metric", "loss", "learning_rate", *REMAINDER_COLUMNS,
    "scheduled_time", "asked_time", "admitted_time", "pulled_time", "computed_time", "pushed_time",
)  # fmt: skip
COLUMNS = ("step", *STORE_COLUMNS, *WORKER_COLUMNS)
TIME_COLUMNS = tuple(name for name in COLUMNS if name.endswith("_time"))
NOBODY = 0.0  # the scheduled time where no chief hands out steps

ROW = np.dtype([(name, np.float64) for name in COLUMNS])
"""A row of a slice's ledger, and a line of metrics/updates.csv."""
NO_ROWS = np.empty(0, ROW)

WHOLE = {"ps", "step", "version", "staleness", "worker", "pid", "examples", "ids_checksum"}
_OF_A_DIVERGED_RUN = {"loss", "learning_rate", "metric"}  # may be NaN or infinite

# The counters that a parameter server keeps beside its rows, each counted in a place of its own: the version, the
# gradients that were accepted, the repeated steps that were refused, and the gradients that were dropped as too late.
COUNTS = ("version", "accepted", "refused", "dropped")


def names_of(row: np.dtype) -> tuple[str, ...]:
    """Return the names of a structured dtype's fields, in order; empty for a plain dtype."""
    return row.names or ()


def check_values(rows: np.ndarray) -> None:
    """Raise Malformed where a row of a structured array [k] has an impossible value."""
    for name in set(names_of(rows.dtype)) - _OF_A_DIVERGED_RUN:
        values = rows[name]
        sound = np.abs(values) <= MOST  # false for NaN too
        if name in WHOLE:
            sound &= (values >= 0) & (values == np.floor(values))
        if name == "worker":
            sound &= values < MOST_INDEX
        if not sound.all():
            raise Malformed(f"has {name} {values[np.argmin(sound)]:g}")


def rows_of(table: np.ndarray) -> np.ndarray:
    """Return float64 [k, len(COLUMNS)] as a structured array [k] of ROW."""
    return np.ascontiguousarray(table, np.float64).view(ROW).reshape(-1)


class ShardJoiner:
    """Joins the rows of several slices. A step counts as applied once all slices have accepted it.

    The joiner holds the rows of steps that some slices still lack, which are at most as many steps as are under way.

    Attributes:
      waiting: the rows held, a structured array [k] of ROW.
      waiting_slices: int64 [k], the slice of each of these rows.
      mixed: the number of steps that different processes pushed to different slices, because a worker died in between.
    """

    def __init__(self, slices: int, *, shared: bool = False):
        """Create a joiner. `shared`: each slice belongs to another process, and all of them take part in every step."""
        self._slices = slices
        self._shared = shared
        self.waiting, self.waiting_slices = NO_ROWS, np.zeros(0, np.int64)
        self.mixed = 0

    def add(self, rows: list[np.ndarray]) -> np.ndarray:
        """Return one row for each step that is now applied on every slice, in the order of their steps.

        A step's staleness is that of its stalest slice, and its rate factor the lowest of any slice. Its times on the
        parameter server are those of the slice that applied it last. Its worker is the one that pushed to slice 0.

        Args:
          rows: the new rows of each slice, structured arrays of ROW.
        """
        if self._slices == 1:
            return rows[0][np.argsort(rows[0]["step"], kind="stable")]
        held = np.concatenate([self.waiting, *rows])
        owners = np.concatenate([self.waiting_slices, np.repeat(np.arange(self._slices), [len(own) for own in rows])])
        # A row that a slice has twice counts once here; the proof reports it.
        # One number for step and slice: sorting pairs took half of a look with 16 slices.
        _, order = np.unique(held["step"].astype(np.int64) * self._slices + owners, return_index=True)
        held, owners = held[order], owners[order]
        _, which, counts = np.unique(held["step"], return_inverse=True, return_counts=True)
        whole = counts[which] == self._slices
        self.waiting, self.waiting_slices = held[~whole], owners[~whole]
        return self._join(held[whole].reshape(-1, self._slices))

    def _join(self, rows: np.ndarray) -> np.ndarray:
        """Return one row per step: structured array [steps] of ROW. `rows`: [steps, slices] of ROW."""
        joined, last = rows[:, 0].copy(), rows["applied_time"].argmax(axis=1)
        joined["staleness"] = rows["staleness"].max(axis=1)
        joined["rate_factor"] = rows["rate_factor"].min(axis=1)
        for name in ("entered_time", "applied_time"):
            joined[name] = rows[name][np.arange(len(rows)), last]
        if not self._shared:
            self.mixed += int((rows["pid"] != rows["pid"][:, :1]).any(axis=1).sum())
        return joined


# A set of step ids that fills from below; its memory grows with the open steps, not with the finished ones.


MOST_OPEN = 2**24  # step ids from the first missing to the last present one; windows are shorter


class StepsState(Row):
    """A set of step ids: all below `below`, and those in `beyond`. `count`: size of the set."""

    below: Count
    beyond: list[Count] = []
    count: Count

    @model_validator(mode="after")
    def _is_a_window(self) -> StepsState:
        if self.beyond and not self.below <= min(self.beyond) <= max(self.beyond) < self.below + MOST_OPEN:
            raise ValueError(f"step {max(self.beyond)} is out of reach of {self.below}")
        return self


class StepSet:
    """A set of all ids below `first_missing` and some ids above it.

    Attributes:
      first_missing: the lowest id that is not in the set.
      count: the size of the set, without the ids that `close_below` skipped.
    """

    def __init__(self, first_missing: int = 0, beyond: np.ndarray | None = None, count: int | None = None):
        """Create a set. `beyond`: int64 [k], its ids above `first_missing`. `count`: its size if `close_below` skipped ids."""
        self.first_missing = self.count = first_missing
        self._above = np.zeros(1024, bool)  # of the ids from first_missing on
        if beyond is not None:
            self.add(beyond)
        self.count = self.count if count is None else count

    def add(self, ids: np.ndarray) -> int:
        """Add `ids` (int64 [k]); return how many of them were in the set already, or came twice.

        Raises:
          Malformed: an id is further above `first_missing` than an open step can be.
        """
        distinct = np.unique(ids)
        places = distinct[distinct >= self.first_missing] - self.first_missing
        if len(places):
            self._make_room(int(places[-1]) + 1)
        fresh = places[~self._above[places]]
        self._above[fresh] = True
        self.count += len(fresh)
        self._advance()
        return len(ids) - len(fresh)

    def holds(self, ids: np.ndarray) -> np.ndarray:
        """Return which of `ids` (int64 [k]) are in the set, bool [k]."""
        places = ids - self.first_missing
        inside = (places >= 0) & (places < len(self._above))
        return (places < 0) | (inside & self._above[np.where(inside, places, 0)])

    def beyond(self) -> np.ndarray:
        """Return the ids of the set above `first_missing`, in order, int64 [k]."""
        return np.flatnonzero(self._above) + self.first_missing

    def missing_below(self, end: int) -> np.ndarray:
        """Return the ids below `end` that are not in the set, in order, int64 [k]."""
        ids = np.arange(self.first_missing, max(end, self.first_missing))
        return np.flatnonzero(~self.holds(ids)) + self.first_missing

    def both(self, other: StepSet) -> StepSet:
        """Return the intersection with `other`. In neither set may `close_below` have skipped ids."""
        below = min(self.first_missing, other.first_missing)
        ids = np.arange(below, max(self.end, other.end))
        return StepSet(below, ids[self.holds(ids) & other.holds(ids)])

    @property
    def end(self) -> int:
        """The lowest id above all ids in the set."""
        beyond = self.beyond()
        return int(beyond[-1]) + 1 if len(beyond) else self.first_missing

    def close_below(self, end: int) -> None:
        """Skip the ids below `end` that are not in the set, because they will never come; `first_missing` moves past them."""
        if end > self.first_missing:
            self._drop(end - self.first_missing)
            self._advance()

    def _make_room(self, places: int) -> None:
        if places > 2 * MOST_OPEN:
            raise Malformed(f"step {self.first_missing + places - 1} is out of reach of {self.first_missing}")
        if places > len(self._above):
            room = np.zeros(2 * places, bool)
            room[: len(self._above)] = self._above
            self._above = room

    def _advance(self) -> None:
        if self._above[0]:
            gap = int(np.argmin(self._above))
            self._drop(len(self._above) if self._above[gap] else gap)

    def _drop(self, places: int) -> None:
        self.first_missing += places
        rest = self._above[places:]
        self._above = np.zeros(max(1024, len(rest)), bool)
        self._above[: len(rest)] = rest


def to_state(steps: StepSet) -> StepsState:
    return StepsState(below=steps.first_missing, beyond=steps.beyond().tolist(), count=steps.count)


def from_state(state: StepsState) -> StepSet:
    return StepSet(state.below, np.array(state.beyond, np.int64), state.count)
