"""Ctrl-C, SIGTERM and SIGHUP, noted for a loop that looks at them when it has time."""

from __future__ import annotations

import signal
from types import FrameType


def stop_signals() -> tuple[int, ...]:
    """Return the signals that ask a run to stop. SIGHUP comes when the terminal is closed; `nohup` has it ignored."""
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    return signal.SIGINT, signal.SIGTERM, *hang_up


class StopRequests:
    """Inside the `with` block, counts the stop signals in place of what they did before."""

    def __init__(self) -> None:
        self.count = 0
        self.last_signal = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequests:
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self.last_signal = number

    @property
    def exit_code(self) -> int:
        """Return what shells report for a process that was ended by this signal: 130 for Ctrl-C, 143 SIGTERM, 129 SIGHUP."""
        return 128 + self.last_signal
