"""Look at the parameter servers beside the dispatching. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, ParamSpec

P = ParamSpec("P")


class BackgroundPoller(Generic[P]):
    """Does looks, one after the other, in a thread of its own: one that saves keeps nobody from handing out steps.

    Use it as a context manager. A block that ends well waits for the look under way, and raises its error.
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
        """Wait so long for the look under way; return whether it has ended. Raises its error."""
        if (look := self._under_way) is not None:
            if not wait([look], seconds).done:
                return False
            self._under_way = None
            look.result()
        return True
