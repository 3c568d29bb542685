"""The time of a training: what somebody waits for it, and what of that was in vain. No TensorFlow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Strict, model_validator

from ps_cluster.rows.base import Number, Pair, Row, Seconds

JUMP_S = 0.5  # a clock that is set moves by more between two looks; one that drifts, or is slewed, by less
_SLACK_S = 0.05  # a time is taken a little before or after the look that tells of it


class Times(Row):
    """All in seconds of training; a leader that is started again goes on from those of the one before it.

    Attributes:
      first_update, last_update: when the first and the last update were applied, whether or not they still stand.
      resumed_update: when the first update since the last (re)start of the leader was applied.
      stood: from when to when each leader had updates applied that still stand.
      interrupted: spent without an update, from the last one of a leader that died to the first one of the next.
    """

    seconds: Seconds = 0.0
    first_update: Number | None = None
    last_update: Number | None = None
    resumed_update: Number | None = None
    stood: Annotated[tuple[Pair, ...], Strict(False)] = ()
    interrupted: Seconds = 0.0

    @model_validator(mode="after")
    def _are_of_one_story(self) -> Times:
        if (self.first_update is None) != (self.last_update is None):
            raise ValueError("of first_update and last_update there is only one")
        if self.resumed_update is not None and not self.stood:
            raise ValueError("there is a resumed_update, but nothing stood")
        return self

    @property
    def rolled_back(self) -> float:
        """Spent on updates that were given up."""
        if self.first_update is None:
            return 0.0
        standing = sum(end - begin for begin, end in self.stood)
        return max(0.0, self.last_update - self.first_update - self.interrupted - standing)

    @property
    def goodput(self) -> float | None:
        """The share of the time from the first to the last update that led to updates that stand."""
        if self.first_update is None or self.last_update <= self.first_update:
            return None
        return 1 - (self.rolled_back + self.interrupted) / (self.last_update - self.first_update)

    def restarted(self, stands_until: float | None) -> Times:
        """Return the times of a leader that goes on from a state whose last update was at `stands_until`; None: from none."""
        until = -math.inf if stands_until is None else stands_until
        stood = tuple((begin, min(end, until)) for begin, end in self.stood if begin < until)
        return self.model_copy(update={"stood": stood, "resumed_update": None})

    def with_updates(self, first: float, last: float) -> Times:
        """Return the times after updates were seen that were applied from `first` to `last`."""
        if self.resumed_update is not None:
            last = max(self.last_update, last)
            return self.model_copy(update={"last_update": last, "stood": (*self.stood[:-1], (self.stood[-1][0], last))})
        waited = first - (first if self.last_update is None else self.last_update)
        return self.model_copy(
            update={
                "first_update": first if self.first_update is None else self.first_update,
                "last_update": last,
                "resumed_update": first,
                "stood": (*self.stood, (first, last)),
                "interrupted": self.interrupted + max(0.0, waited),
            }
        )


@dataclass(frozen=True)
class _Setting:
    """The distance of the machine's clock from where it would be had nobody set it, and when it was so, by that clock."""

    shift: float
    since: float  # the last look before it was noticed
    until: float = math.inf  # the look at which the next one was noticed


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
        self._settings = [_Setting(0.0, -math.inf)]
        self._looked = wall()  # by the clock that nobody set
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
        return self._times.model_copy(update={"seconds": self.seconds})

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
        monotonic, wall = self._monotonic(), self._wall()
        change = wall - monotonic - self._offset
        self._offset += change
        last = self._settings[-1]
        if abs(change) > JUMP_S:
            now = wall - last.shift - change
            self._settings[-1] = replace(last, until=now)
            self._settings.append(_Setting(last.shift + change, self._looked))
        self._looked = wall - self._settings[-1].shift

    def unsettled(self, unix: np.ndarray) -> np.ndarray:
        """Return unix times (float64 […]) up to the last look as the clock would say them had nobody set it. 0 stays 0."""
        if len(self._settings) == 1:
            return unix
        # Each was taken under one of the settings: of those that were in force at the time that they make of it, the latest.
        shifts, since, until = (np.array(column) for column in zip(*map(astuple, self._settings)))
        meanings = unix[..., None] - shifts
        possible = (since - _SLACK_S <= meanings) & (meanings <= np.minimum(until, self._looked) + _SLACK_S)
        latest = np.where(possible, meanings, -np.inf).max(axis=-1)
        return np.where((unix == 0) | ~np.isfinite(latest), unix, latest)

    def seconds_at(self, unix: np.ndarray) -> np.ndarray:
        """Return training seconds (float64 […]) of times that `unsettled` returned."""
        return unix - (self._offset - self._settings[-1].shift) - (self._zero or 0.0)

    def note_updates(self, seconds: np.ndarray) -> None:
        """Updates were applied at `seconds` (float64 [k]) of training."""
        if len(seconds):
            self._times = self._times.with_updates(float(seconds.min()), float(seconds.max()))
