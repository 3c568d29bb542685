"""A lock for two threads of which one takes it again and again: the other one gets its turn at the next release."""

from __future__ import annotations

import threading


class FairLock:
    """A context manager. A plain lock may be taken again by the thread that has just released it, for ever."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:  # who waits for the lock keeps others from asking for it
            self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()
