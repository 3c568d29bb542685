"""Measure how fast a training makes progress at present."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

RATE_WINDOW_S = 10.0


class AppliedSoFar(NamedTuple):
    """The numbers of updates and examples that had been applied when the ledger was read."""

    monotonic_s: float
    updates: int
    examples: int


class RecentSpeed:
    """Measures the speed of a training over the last `RATE_WINDOW_S` seconds.

    One thread calls `add`. Any thread may read the attributes.

    Attributes:
      updates_per_second, examples_per_second: the speed at the last check of the ledger; 0 until it is known.
    """

    def __init__(self) -> None:
        self.updates_per_second = self.examples_per_second = 0.0
        self._recent: deque[AppliedSoFar] = deque()  # within RATE_WINDOW_S

    def add(self, now: AppliedSoFar) -> None:
        """Add the numbers that a check of the ledger has found, and compute the speed again."""
        self._recent.append(now)
        while now.monotonic_s - self._recent[0].monotonic_s > RATE_WINDOW_S:
            self._recent.popleft()
        oldest = self._recent[0]
        seconds = now.monotonic_s - oldest.monotonic_s
        self.updates_per_second = (now.updates - oldest.updates) / seconds if seconds > 0 else 0.0
        self.examples_per_second = (now.examples - oldest.examples) / seconds if seconds > 0 else 0.0
