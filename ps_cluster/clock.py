"""A clock for time limits. It does not count time in which this process was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable

# A waiting process reads the clock several times a second. A longer gap between two reads means that the
# process, or the whole machine, did not run.
LONGEST_GAP_S = 2.0


class AwakeClock:
    """A clock that counts the seconds in which this process ran.

    Of the time between two reads, at most `LONGEST_GAP_S` seconds count. If a whole run is frozen (by a
    control group, SIGSTOP, or a laptop's suspend), its time limits therefore do not expire: they count only time in
    which the other processes could have answered. Read the clock at least every `LONGEST_GAP_S` seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen_s = clock()
        self._awake_s = 0.0

    def __call__(self) -> float:
        now_s = self._clock()
        self._awake_s += min(now_s - self._seen_s, LONGEST_GAP_S)
        self._seen_s = now_s
        return self._awake_s
