"""A lock for two threads: if one thread takes it again and again, the other gets its turn at the next release."""

from __future__ import annotations

import threading


class FairLock:
    """A fair lock, used as a context manager. With a plain lock, one thread could take it again and again for ever."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:  # a thread that waits for the lock keeps others from asking for it
            self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()
