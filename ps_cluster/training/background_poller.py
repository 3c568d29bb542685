"""Look at the parameter servers in a separate thread while the chief dispatches. This module imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, ParamSpec

P = ParamSpec("P")


class BackgroundPoller(Generic[P]):
    """Looks at the servers in a separate thread, so that a look that saves a checkpoint does not delay the dispatching.

    Use it as a context manager. A block that ends without an error waits for the current look, and raises its error.
    """

    def __init__(self, look: Callable[P, None]):
        self._look = look
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="upkeep")
        self._under_way: Future[None] | None = None

    def __enter__(self) -> BackgroundPoller[P]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._pool.shutdown(wait=kind is None)  # after another error, a server that is gone may never answer
        if kind is None and self._under_way is not None:
            self._under_way.result()

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    def begin(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Begin a look. Call it while none is under way."""
        self._under_way = self._pool.submit(self._look, *arguments, **named)

    def ended_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the current look; return whether it has ended. Raises the look's error."""
        if (look := self._under_way) is not None:
            if not wait([look], seconds).done:
                return False
            self._under_way = None
            look.result()
        return True
