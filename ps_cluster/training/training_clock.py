"""The time of a training: what somebody waits for it, and what of that was in vain. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

JUMP_S = 0.5  # a clock that is set moves by more between two looks; one that drifts, or is slewed, by less
Json = dict[str, Any]


@dataclass(frozen=True)
class Times:
    """All in seconds of training; a leader that is started again goes on from those of the one before it.

    Attributes:
      first_update, last_update: when the first and the last update were applied, whether or not they still stand.
      resumed_update: when the first update since the last (re)start of the leader was applied.
      rolled_back: spent on updates that were given up. interrupted: spent without an update, from the last one of a
        leader that died to the first one of the next.
    """

    seconds: float = 0.0
    first_update: float | None = None
    last_update: float | None = None
    resumed_update: float | None = None
    rolled_back: float = 0.0
    interrupted: float = 0.0

    @property
    def goodput(self) -> float | None:
        """The share of the time from the first to the last update that led to updates that stand."""
        if self.first_update is None or self.last_update <= self.first_update:
            return None
        return 1 - (self.rolled_back + self.interrupted) / (self.last_update - self.first_update)

    def restarted(self, stands_until: float | None) -> Times:
        """Return the times of a leader that goes on from a state whose last update was at `stands_until`."""
        if self.resumed_update is None:  # the leader before it came to no update: nothing more is given up
            return self
        good = self.resumed_update if stands_until is None else max(stands_until, self.resumed_update)
        lost = max(0.0, self.last_update - good)
        return replace(self, rolled_back=self.rolled_back + lost, resumed_update=None)

    def with_updates(self, first: float, last: float) -> Times:
        """Return the times after updates were seen that were applied from `first` to `last`."""
        if self.resumed_update is not None:
            return replace(self, last_update=max(self.last_update, last))
        waited = max(0.0, first - self.last_update) if self.last_update is not None else 0.0
        return replace(
            self,
            first_update=first if self.first_update is None else self.first_update,
            last_update=last,
            resumed_update=first,
            interrupted=self.interrupted + waited,
        )


class TrainingClock:
    """Counts seconds of training, on a clock that nobody can set.

    Updates bring unix times that other processes took from the machine's clock. Where that was set meanwhile, `look` notices
    and `unsettled` takes the jump out of them again.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ):
        self._monotonic = monotonic
        self._wall = wall
        self._offset = wall() - monotonic()
        self._shift = 0.0  # by how much the machine's clock was set since, all together
        self._shifts = [0.0]
        self._times = Times()
        self._zero: float | None = None  # the monotonic time of training second 0; None: it has not begun

    @property
    def monotonic(self) -> float:
        """Seconds that other processes of this machine can compare with theirs."""
        return self._monotonic()

    @property
    def unix(self) -> float:
        return self._wall()

    @property
    def times(self) -> Times:
        return replace(self._times, seconds=self.seconds)

    @property
    def seconds(self) -> float:
        return self._times.seconds if self._zero is None else self._monotonic() - self._zero

    def restart(self, before: Times, stands_until: float | None, *, since: float | None = None) -> None:
        """Go on where another leader was.

        Args:
          before: its times, as of its last sign of life.
          stands_until: when the last update was applied of the state to go on from; None: there is no such state.
          since: the monotonic time of that sign of life where somebody has waited since; None: nobody has.
        """
        self._times = before.restarted(stands_until)
        if since is not None and since <= self._monotonic() and before.first_update is not None:
            self._zero = since - before.seconds

    def start(self) -> None:
        """The first step is about to be scheduled: time starts to count, unless it counts already."""
        if self._zero is None:
            self._zero = self._monotonic() - self._times.seconds

    def look(self) -> None:
        """Notice whether the machine's clock was set. Call it before times that were taken since the last call are used."""
        change = self._wall() - self._monotonic() - self._offset
        self._offset += change
        if abs(change) > JUMP_S:
            self._shift += change
            self._shifts.append(self._shift)

    def unsettled(self, unix: np.ndarray) -> np.ndarray:
        """Return unix times (float64 […]) of a short while ago as the clock would say them had it never been set. 0 stays 0."""
        if len(self._shifts) == 1:
            return unix
        # A time is from before a jump or from after it: of what it may mean, the latest that is not yet to come.
        meanings = unix[..., None] - np.array(self._shifts)
        latest = self._wall() - self._shift + JUMP_S
        possible = np.where(meanings <= latest, meanings, -np.inf).max(axis=-1)
        return np.where((unix == 0) | ~np.isfinite(possible), unix, possible)

    def seconds_at(self, unix: np.ndarray) -> np.ndarray:
        """Return training seconds (float64 […]) of times that `unsettled` returned."""
        return unix - (self._offset - self._shift) - (self._zero or 0.0)

    def note_updates(self, seconds: np.ndarray) -> None:
        """Updates were applied at `seconds` (float64 [k]) of training."""
        if len(seconds):
            self._times = self._times.with_updates(float(seconds.min()), float(seconds.max()))


def to_json(times: Times) -> Json:
    return asdict(times)


def from_json(value: Json) -> Times:
    return Times(**value)
