"""End a worker's wait for other workers when a round takes too long, because TensorFlow's collectives wait for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOKS = 10  # number of looks within the limit


class RoundWatch:
    """Calls `give_up` once, in a separate thread, if `moved` was not called for `limit_s` inside the `with` block."""

    def __init__(self, limit_s: float, give_up: Callable[[float], None], clock: Callable[[], float] = time.monotonic):
        """Create a watch.

        Args:
          limit_s: the limit of the first round; `moved` sets the limit of the next round.
          give_up: is called with the limit that was exceeded, in seconds.
        """
        self._limit_s = limit_s
        self._give_up = give_up
        self._clock = clock
        self._over = threading.Event()
        self._moved_s = clock()
        self._thread = threading.Thread(target=self._watch, name="rounds", daemon=True)

    def moved(self, limit_s: float) -> None:
        """Record that a round has ended. `limit_s`: the limit of the next round."""
        self._moved_s, self._limit_s = self._clock(), limit_s

    def __enter__(self) -> RoundWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()  # a watch that has just woken up would give up after the last round

    def _watch(self) -> None:
        while not self._over.wait(self._limit_s / _LOOKS):
            if self._clock() - self._moved_s > self._limit_s:
                self._give_up(self._limit_s)
                return
