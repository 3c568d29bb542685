"""Notice a round of all-reduce that does not end. TensorFlow's collectives wait for a lost worker for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class _Deadline(NamedTuple):
    at_s: float  # on the clock of the watch
    limit_s: float  # the time from the last sign of life to the deadline


class RoundWatch:
    """Calls a function if a round of all-reduce takes too long.

    Inside the `with` block, a separate thread calls `give_up` once if `moved` was not called in time.
    """

    def __init__(
        self,
        longest_round_s: Callable[[], float],
        give_up: Callable[[float], None],
        *,
        check_every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Create a watch. The first round begins now.

        Args:
          longest_round_s: returns the longest time that the next round may take, in seconds. It is called at the
            beginning of each round.
          give_up: is called with the limit that was exceeded, in seconds.
          check_every_s: the seconds between two checks of the time.
        """
        self._longest_round_s = longest_round_s
        self._give_up = give_up
        self._check_every_s = min(check_every_s, threading.TIMEOUT_MAX)
        self._clock = clock
        self._over = threading.Event()
        self.moved()
        self._thread = threading.Thread(target=self._watch, name="rounds", daemon=True)

    def moved(self, *, saving_s: float = 0.0) -> None:
        """Record that a round or a save has ended, so that the next round begins.

        Args:
          saving_s: the additional seconds that the next round may take because worker 0 saves a state first.
        """
        limit_s = self._longest_round_s() + saving_s
        # This is one assignment, because a new limit must not be compared with the time of the previous sign of life.
        self._deadline = _Deadline(self._clock() + limit_s, limit_s)

    @property
    def exceeded_s(self) -> float | None:
        """The limit that the present round has exceeded, in seconds; None if the round is still in time."""
        deadline = self._deadline
        return deadline.limit_s if self._clock() > deadline.at_s else None

    def __enter__(self) -> RoundWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()  # otherwise a watch that has just woken up could give up after the last round

    def _watch(self) -> None:
        while not self._over.wait(self._check_every_s):
            if (exceeded_s := self.exceeded_s) is not None:
                self._give_up(exceeded_s)
                return
