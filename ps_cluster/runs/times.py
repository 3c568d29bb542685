"""Measure how long a training took and how much of this time was lost, with a monotonic clock. No TensorFlow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Strict, model_validator

from ps_cluster.runs.rows import Number, Pair, Row, Seconds

# If the clock's offset changes by more than this between two calls of `poll`, the clock was set. Drift is smaller.
JUMP_S = 0.5
_SLACK_S = 0.05  # a time may be read a little before or after the `poll` to which it belongs


class TrainingTimes(Row):
    """Times in seconds of training. A restarted leader continues from the times of the leader before it.

    Attributes:
      first_update, last_update: when the first and the last update were applied, even if rolled back since.
      resumed_update: when the first update since the last (re)start of the leader was applied.
      stood: for each leader, when its first and its last update were applied, without updates that were rolled back.
      interrupted: the sum, over all leaders that died, of the time from the leader's last update to the next leader's
        first update.
    """

    seconds: Seconds = 0.0
    first_update: Number | None = None
    last_update: Number | None = None
    resumed_update: Number | None = None
    stood: Annotated[tuple[Pair, ...], Strict(False)] = ()
    interrupted: Seconds = 0.0

    @model_validator(mode="after")
    def _are_consistent(self) -> TrainingTimes:
        if (self.first_update is None) != (self.last_update is None):
            raise ValueError("only one of 'first_update' and 'last_update' is set")
        if self.resumed_update is not None and not self.stood:
            raise ValueError("'resumed_update' is set, but 'stood' is empty")
        return self

    @property
    def span(self) -> float | None:
        """Seconds from the first to the last update; None without an update."""
        if self.first_update is None or self.last_update is None:
            return None
        return self.last_update - self.first_update

    @property
    def rolled_back(self) -> float:
        """Seconds spent on updates that were rolled back."""
        if self.span is None:
            return 0.0
        standing = sum(end - begin for begin, end in self.stood)
        return max(0.0, self.span - self.interrupted - standing)

    @property
    def goodput(self) -> float | None:
        """The share of the time from the first to the last update that was neither rolled back nor interrupted."""
        if self.span is None or self.span <= 0:
            return None
        return 1 - (self.rolled_back + self.interrupted) / self.span

    def restarted(self, last_update_of_state: float | None) -> TrainingTimes:
        """Return the times from which a leader continues if it resumes from a state.

        `last_update_of_state`: when the last update of this state was applied [s of training]; None: it has no update.
        """
        until = -math.inf if last_update_of_state is None else last_update_of_state
        stood = tuple((begin, min(end, until)) for begin, end in self.stood if begin < until)
        return self.model_copy(update={"stood": stood, "resumed_update": None})

    def with_updates(self, first: float, last: float) -> TrainingTimes:
        """Return the times after further updates, which were applied from `first` to `last` [s of training]."""
        before = first if self.last_update is None else self.last_update
        if self.resumed_update is not None:
            last = max(before, last)
            return self.model_copy(update={"last_update": last, "stood": (*self.stood[:-1], (self.stood[-1][0], last))})
        return self.model_copy(
            update={
                "first_update": first if self.first_update is None else self.first_update,
                "last_update": last,
                "resumed_update": first,
                "stood": (*self.stood, (first, last)),
                "interrupted": self.interrupted + max(0.0, first - before),
            }
        )


@dataclass(frozen=True)
class _ClockSetting:
    """A period in which the machine's clock was off by `shift` seconds, because it had been set to another time."""

    shift: float
    since: float  # the time of the last `poll` before the change was noticed, on a clock that was never set
    until: float = math.inf  # the time of the `poll` that noticed the next change, on the same clock


class TrainingClock:
    """A clock that counts seconds of training by the machine's monotonic clock, which can't be set.

    Updates carry unix times that other processes read from the machine's clock. If that clock is set to another time
    during the training, `poll` notices the jump and `without_clock_jumps` removes it from the times.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time):
        self._monotonic = monotonic
        self._wall = wall
        self._offset = wall() - monotonic()
        self._settings = [_ClockSetting(0.0, -math.inf)]
        self._polled = wall()  # unix time of the last `poll`, on a clock that was never set
        self._times = TrainingTimes()
        self._zero: float | None = None  # the monotonic time of training second 0; None: training has not begun

    @property
    def monotonic(self) -> float:
        """Monotonic seconds, comparable between the processes of this machine."""
        return self._monotonic()

    @property
    def unix(self) -> float:
        return self._wall()

    @property
    def times(self) -> TrainingTimes:
        return self._times.model_copy(update={"seconds": self.seconds})

    @property
    def seconds(self) -> float:
        return self._times.seconds if self._zero is None else self._monotonic() - self._zero

    def restart(self, before: TrainingTimes, last_update_of_state: float | None, *, since: float | None = None) -> None:
        """Continue from the times in another leader's last progress row.

        Args:
          before: the times in that row.
          last_update_of_state: when the last update of the state to resume was applied [s of training]; None if there
            is no state, or if it has no update.
          since: the monotonic time of that row, if the time since then counts as training; else None.
        """
        self._times = before.restarted(last_update_of_state)
        if since is not None and since <= self._monotonic() and before.first_update is not None:
            self._zero = since - before.seconds

    def start(self) -> None:
        """Start the clock, unless it runs already. Call this just before the first step is scheduled."""
        if self._zero is None:
            self._zero = self._monotonic() - self._times.seconds

    def poll(self) -> None:
        """Check whether the machine's clock was set to another time.

        Call this before using times that were taken since the last call.
        """
        monotonic, wall = self._monotonic(), self._wall()
        change = wall - monotonic - self._offset
        self._offset += change
        last = self._settings[-1]
        if abs(change) > JUMP_S:
            now = wall - last.shift - change
            self._settings[-1] = replace(last, until=now)
            self._settings.append(_ClockSetting(last.shift + change, self._polled))
        self._polled = wall - self._settings[-1].shift

    def without_clock_jumps(self, unix: np.ndarray) -> np.ndarray:
        """Return unix times, float64 […], without the jumps of a machine's clock that was set to another time.

        All times must have been taken before the last call of `poll`. A time of 0, which means no time, stays 0.
        """
        if len(self._settings) == 1:
            return unix
        # Each time was taken under one setting of the clock. If several settings are possible, use the latest time.
        shifts, since, until = (np.array(column) for column in zip(*map(astuple, self._settings)))
        meanings = unix[..., None] - shifts
        possible = (since - _SLACK_S <= meanings) & (meanings <= np.minimum(until, self._polled) + _SLACK_S)
        latest = np.where(possible, meanings, -np.inf).max(axis=-1)
        return np.where((unix == 0) | ~np.isfinite(latest), unix, latest)

    def seconds_at(self, unix: np.ndarray) -> np.ndarray:
        """Return the training seconds (float64 […]) of times that `without_clock_jumps` returned."""
        return unix - (self._offset - self._settings[-1].shift) - (self._zero or 0.0)

    def note_updates(self, seconds: np.ndarray) -> None:
        """Record that updates were applied at `seconds` (float64 [k]) of training."""
        if len(seconds):
            self._times = self._times.with_updates(float(seconds.min()), float(seconds.max()))
