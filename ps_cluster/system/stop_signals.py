"""Count Ctrl-C, SIGTERM and SIGHUP, for a loop that checks the count."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None  # as `signal.signal` takes and returns it

_POLL_INTERVAL_S = 0.1


def stop_signals() -> tuple[int, ...]:
    """Return the signals that ask a run to stop. SIGHUP (terminal closed) is left out if `nohup` ignores it."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return signal.SIGINT, signal.SIGTERM, *hang_up


class Drain(threading.Event):
    """An event that asks the leader to end cleanly: to start no new steps and to write a last checkpoint.

    `for_good`: True if the user wants the training to end (Ctrl-C). False if the training is to continue when a leader
    is started again, e.g. because only the machine is needed for something else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.for_good = True

    def ask(self, number: int) -> None:
        self.for_good = number == signal.SIGINT
        self.set()


class StopRequests:
    """Counts the signals of `stop_signals` inside its `with` block, in place of the usual handlers of these signals."""

    def __init__(self) -> None:
        self.count = 0
        self.last_signal = 0
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> StopRequests:
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds`, or until a stop signal arrives. Return True if no stop signal has arrived so far."""
        until = time.monotonic() + seconds
        while not self.count and (left := until - time.monotonic()) > 0:
            time.sleep(min(_POLL_INTERVAL_S, left))  # a signal does not end a sleep
        return not self.count

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self.last_signal = number

    @property
    def exit_code(self) -> int:
        """The exit code for the last signal, as shells report it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + self.last_signal
