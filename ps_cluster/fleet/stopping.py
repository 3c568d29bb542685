"""Stop a fleet when its user asks: politely at first, at once when asked again, and never later than a limit."""

from __future__ import annotations

from collections.abc import Callable

from ps_cluster.clock import AwakeClock
from ps_cluster.fleet.fleet import Fleet
from ps_cluster.processes.stop_requests import StopRequests

DRAIN_S = 120.0  # for the steps under way, a last checkpoint and its score


class Stopping:
    """Hands on stop requests to the runs of a fleet. Call `is_over` several times a second."""

    def __init__(
        self, fleet: Fleet, requests: StopRequests, notify: Callable[[str], None],
        clock: Callable[[], float] | None = None,
    ):  # fmt: skip
        self._fleet = fleet
        self._requests = requests
        self._notify = notify
        self._clock = clock or AwakeClock()
        self._handed_on = 0
        self._deadline = 0.0

    @property
    def begun(self) -> bool:
        return self._requests.count > 0

    @property
    def exit_code(self) -> int:
        return self._requests.exit_code if self.begun else 0

    def is_over(self) -> bool:
        """Hand on new requests. Return whether the runs had their time to stop."""
        now = self._clock()
        if not self.begun:
            return False
        if not self._handed_on:
            self._deadline = now + DRAIN_S
            count = len(self._fleet.jobs)
            self._notify(f"stopping {count} run{'s' * (count != 1)}, within {DRAIN_S:g} s; once more stops at once")
        if self._handed_on < min(self._requests.count, 2):
            self._handed_on += 1
            for job in self._fleet.jobs:
                self._fleet.ask_to_stop(job)
        return now > self._deadline
