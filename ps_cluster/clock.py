"""A clock for time limits that no process breaks by being stopped."""

from __future__ import annotations

import time
from collections.abc import Callable

# Whoever waits looks several times a second. Longer gaps come from a process, or a machine, that did not run.
LONGEST_GAP_S = 2.0


class AwakeClock:
    """Seconds in which this process has looked at the clock: a longer gap between two looks counts as `LONGEST_GAP_S`.

    A run that is frozen as a whole (control group, SIGSTOP, a laptop's suspend) then loses no time that it was given:
    its limits count only time in which the others could have answered. Ask it at least once in `LONGEST_GAP_S`.
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
