"""The clock of the simulation, and the processors whose time the simulated processes share."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TypeVarTuple

Action = Callable[[], None]
Arguments = TypeVarTuple("Arguments")


class Events:
    """A queue of events by time. Events of the same time happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0  # the simulated time in seconds
        self._heap: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Plan `action(*arguments)` for the simulated time `time`, which must not be in the past."""
        planned: Action = partial(action, *arguments)
        heapq.heappush(self._heap, (time, next(self._order), planned))

    def after(self, seconds: float, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Plan `action(*arguments)` for some seconds from now."""
        self.at(self.now + seconds, action, *arguments)

    def run_while(self, more: Callable[[], bool]) -> None:
        """Carry out the planned events, one after the other. Stop before an event if `more()` is false."""
        while more():
            self.now, _, action = heapq.heappop(self._heap)
            action()


class Core:
    """One core. All its jobs progress at the same rate: egalitarian processor sharing.

    `_share` is the CPU time that a job would have had if it had been on the core since the beginning. A job of s
    seconds ends when `_share` has grown by s since the job was added.
    """

    def __init__(self, events: Events, ran_dry: Callable[[Core], None]):
        """Create an idle core. `ran_dry` is called when the core has no job left."""
        self._events = events
        self._ran_dry = ran_dry
        self._jobs: list[tuple[float, int, Action]] = []
        self._order = count()
        self._share = 0.0
        self._seen = 0.0
        self._plan = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, seconds: float, then: Action) -> None:
        """Add a job; call `then()` when it has had `seconds` of CPU."""
        self._advance()
        heapq.heappush(self._jobs, (self._share + seconds, next(self._order), then))
        self._plan_next()

    def take_longest(self) -> tuple[float, Action]:
        """Remove the job that would end last, and return its remaining seconds and its action."""
        self._advance()
        longest = max(self._jobs)
        self._jobs.remove(longest)
        heapq.heapify(self._jobs)
        self._plan_next()
        return max(0.0, longest[0] - self._share), longest[2]

    def _advance(self) -> None:
        if self._jobs:
            self._share += (self._events.now - self._seen) / len(self._jobs)
        self._seen = self._events.now

    def _plan_next(self) -> None:
        self._plan += 1  # This cancels the end that was planned for another rate.
        if self._jobs:
            left = max(0.0, self._jobs[0][0] - self._share)
            self._events.after(left * len(self._jobs), self._end_first, self._plan)

    def _end_first(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        *_, then = heapq.heappop(self._jobs)
        self._plan_next()
        if not self._jobs:
            self._ran_dry(self)
        then()


class Cores:
    """Cores of one machine under a fair scheduler: no core is idle while two threads share another core.

    A thread starts on the core with the fewest threads. An idle core takes a thread from the core with the most threads.
    """

    def __init__(self, events: Events, number: int):
        self._idle = [Core(events, self._take_over) for _ in range(number)]
        self._all = tuple(self._idle)

    def run(self, seconds: float, then: Action, threads: float = 1.0) -> None:
        """Run `threads` threads of `seconds` CPU seconds each, and call `then()` when all have ended.

        `threads` may be a fraction: with 1.5, the second thread needs only half of the seconds.
        """
        left = math.ceil(threads)

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        for begun in range(left):
            core = self._idle.pop() if self._idle else min(self._all, key=len)
            core.add(seconds * min(1.0, threads - begun), ended)

    @property
    def load(self) -> float:
        """Threads per core."""
        return sum(map(len, self._all)) / len(self._all)

    def _take_over(self, dry: Core) -> None:
        fullest = dry if self._idle else max(self._all, key=len)
        if len(fullest) > 1:
            dry.add(*fullest.take_longest())
        else:
            self._idle.append(dry)


class Process:
    """A process that does its jobs one after the other, in the order of their arrival.

    Each job runs on the cores that are least busy when it begins.
    """

    def __init__(self, cores: Sequence[Cores]):
        self._cores = cores
        self._waiting: deque[tuple[float, Action]] = deque()
        self._busy = False

    def do(self, seconds: float, then: Action) -> None:
        """Add a job of `seconds` CPU seconds. Call `then()` when it and all earlier jobs are done."""
        self._waiting.append((seconds, then))
        if not self._busy:
            self._start_next()

    def _start_next(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            seconds, then = self._waiting.popleft()
            min(self._cores, key=lambda cores: cores.load).run(seconds, lambda: self._end(then))

    def _end(self, then: Action) -> None:
        then()
        self._start_next()
