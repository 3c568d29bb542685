"""Tell how far the packing of a data set is, where it takes long."""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_S = 5.0


class PackingProgress:
    """Notifies of the share that is written, at most once in five seconds."""

    def __init__(
        self, name: str, total_bytes: int, notify: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ):
        self._name, self._total, self._notify, self._clock = name, total_bytes, notify, clock
        self._done, self._told_at = 0, clock()

    def add(self, written_bytes: int) -> None:
        """Count bytes that were written."""
        self._done += written_bytes
        if self._clock() - self._told_at >= _EVERY_S:
            self._told_at = self._clock()
            share = 100 * self._done // max(1, self._total)
            self._notify(f"packed {share} % of {self._total / 1e9:.2f} GB of '{self._name}'")
