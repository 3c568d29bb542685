"""Store a set of step ids that are added in nearly ascending order.

All ids below the first missing one are stored as one number, so finished steps take no memory.
"""

from __future__ import annotations

import numpy as np
from pydantic import model_validator

from ps_cluster.files.values import Malformed
from ps_cluster.runs.rows import Count, Row

MOST_OPEN = 2**24  # the largest distance from the first missing to the last present id; ledger windows are shorter


class StepsState(Row):
    """A stored `StepSet`: all ids below `below`, and the ids in `beyond`.

    `count`: the size of the set, without the ids that `StepSet.close_below` skipped.
    """

    below: Count
    beyond: list[Count] = []
    count: Count

    @model_validator(mode="after")
    def _is_a_window(self) -> StepsState:
        if self.beyond and not self.below <= min(self.beyond) <= max(self.beyond) < self.below + MOST_OPEN:
            raise ValueError(f"step {max(self.beyond)} is too far above step {self.below}, the first missing step")
        return self


class StepSet:
    """A set of all ids below `first_missing` and some ids above it.

    `count`: the size of the set, without the ids that `close_below` skipped.
    """

    def __init__(self, first_missing: int = 0, beyond: np.ndarray | None = None, count: int | None = None):
        """Create a set of all ids below `first_missing`.

        `beyond`: further ids, above `first_missing`, int64 [k]. `count`: the size of the set without the ids that
        `close_below` skipped; None if no ids were skipped.
        """
        self.first_missing = self.count = first_missing
        self._above = np.zeros(1024, bool)  # whether the set has each id from first_missing on
        if beyond is not None:
            self.add(beyond)
        self.count = self.count if count is None else count

    def add(self, ids: np.ndarray) -> int:
        """Add `ids` (int64 [k]). Return how many of them were already in the set or appear twice.

        Raises Malformed if an id is so far above `first_missing` that it can't be that of a step under way.
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
        """Return the intersection with `other`. Call this only for sets in which `close_below` has skipped no ids."""
        below = min(self.first_missing, other.first_missing)
        ids = np.arange(below, max(self.end, other.end))
        return StepSet(below, ids[self.holds(ids) & other.holds(ids)])

    @property
    def end(self) -> int:
        """The lowest id above all ids in the set."""
        beyond = self.beyond()
        return int(beyond[-1]) + 1 if len(beyond) else self.first_missing

    def close_below(self, end: int) -> None:
        """Skip the missing ids below `end`, because they will never be added. `first_missing` moves past them."""
        if end > self.first_missing:
            self._drop(end - self.first_missing)
            self._advance()

    def _make_room(self, places: int) -> None:
        if places > 2 * MOST_OPEN:
            raise Malformed(
                f"step {self.first_missing + places - 1} is too far above step {self.first_missing}, the "
                "first missing step"
            )
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
