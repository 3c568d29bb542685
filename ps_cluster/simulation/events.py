"""Time in the simulation, and the things that queue in it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

Action = Callable[..., None]


class Events:
    """What happens when. Things of the same moment happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._heap: list[tuple[float, int, Action, tuple]] = []
        self._order = count()

    def at(self, time: float, action: Action, *arguments) -> None:
        """Plans `action(*arguments)` for a moment that is not over."""
        heapq.heappush(self._heap, (time, next(self._order), action, arguments))

    def after(self, seconds: float, action: Action, *arguments) -> None:
        self.at(self.now + seconds, action, *arguments)

    def run_while(self, more: Callable[[], bool]) -> None:
        while more():
            self.now, _, action, arguments = heapq.heappop(self._heap)
            action(*arguments)


class Cores:
    """Cores of one machine, shared evenly by all threads that want to compute; none computes on more than one core.

    Egalitarian processor sharing. All threads go forward at the same rate, so `_share`, the seconds that each has had since
    the beginning, orders the jobs: one ends when `_share` is what it was at the job's start plus the job's seconds.
    """

    def __init__(self, events: Events, cores: float):
        self._events = events
        self._cores = cores
        self._jobs: list[tuple[float, int, float, Action]] = []
        self._order = count()
        self._threads = 0.0  # of all jobs
        self._share = 0.0
        self._seen = 0.0
        self._plan = 0

    def run(self, seconds: float, then: Action, threads: float = 1.0) -> None:
        """`then()` once each of so many threads has had so many CPU seconds; 1.5: two threads for half of the time."""
        self._go_on()
        self._threads += threads
        heapq.heappush(self._jobs, (self._share + seconds, next(self._order), threads, then))
        self._plan_next()

    @property
    def load(self) -> float:
        """Threads for each core."""
        return self._threads / self._cores

    @property
    def _rate(self) -> float:
        return min(1.0, 1 / self.load)

    def _go_on(self) -> None:
        if self._jobs:
            self._share += (self._events.now - self._seen) * self._rate
        self._seen = self._events.now

    def _plan_next(self) -> None:
        self._plan += 1  # what was planned before counted on another rate
        if self._jobs:
            left = max(0.0, self._jobs[0][0] - self._share)
            self._events.after(left / self._rate, self._end_first, self._plan)

    def _end_first(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._go_on()
        _, _, threads, then = heapq.heappop(self._jobs)
        self._threads = self._threads - threads if self._jobs else 0.0  # exactly none is left of the last one
        self._plan_next()
        then()


def least_busy(parts: Sequence[Cores]) -> Cores:
    """Of the parts of one machine, the one on which a thread goes forward fastest."""
    return min(parts, key=lambda cores: cores.load)


class Process:
    """A process of the machine that does one thing after the other, in the order in which they come.

    Each is done on the cores that are least busy when it begins.
    """

    def __init__(self, cores: Sequence[Cores]):
        self._cores = cores
        self._waiting: deque[tuple[float, Action]] = deque()
        self._busy = False

    def do(self, seconds: float, then: Action) -> None:
        """`then()` once all that came earlier and so many CPU seconds are done."""
        self._waiting.append((seconds, then))
        if not self._busy:
            self._start_next()

    def _start_next(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            seconds, then = self._waiting.popleft()
            least_busy(self._cores).run(seconds, lambda: self._end(then))

    def _end(self, then: Action) -> None:
        then()
        self._start_next()
