"""End a worker's wait for the others when a round takes too long: TensorFlow's collectives wait for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOKS = 10  # within the limit


class RoundWatch:
    """Calls `give_up` once, from its own thread, when `moved` was not called for `limit_s` inside the `with` block.

    Until the first call it waits `first_s` longer: the first round builds its graph.
    """

    def __init__(
        self, limit_s: float, give_up: Callable[[], None], clock: Callable[[], float] = time.monotonic,
        *, first_s: float = 0.0,
    ):  # fmt: skip
        self._limit_s = limit_s
        self._give_up = give_up
        self._clock = clock
        self._over = threading.Event()
        self._moved_s = clock() + first_s

    def moved(self) -> None:
        """Note that a round has ended."""
        self._moved_s = self._clock()

    def __enter__(self) -> RoundWatch:
        threading.Thread(target=self._watch, name="rounds", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._limit_s / _LOOKS):
            if self._clock() - self._moved_s > self._limit_s:
                self._give_up()
                return
