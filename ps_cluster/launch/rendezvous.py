"""Wait until the tasks that the chief needs are there. No TensorFlow, so a stop signal ends the wait at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ps_cluster.config.modes import WORKER, Task
from ps_cluster.files import writing
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.logs import CONNECTED, WAITING
from ps_cluster.system.environment import StopRequests
from ps_cluster.system.network import working

PROBE_EVERY_S = 1.0
SAY_EVERY_S = 10.0
REST_S = 60.0  # how long to wait for the other workers once everything else is there
_SLEEP_S = 0.2
_NAMED = 3

Reach = Callable[[Mapping[Task, str]], set[Task]]


@dataclass(frozen=True)
class Patience:
    """Bounds of the wait for other tasks: its length, and the number of workers that are enough.

    Attributes:
      wait_s: for the tasks that are needed.
      least_workers: begin as soon as so many are there; None: all, or those that came within `REST_S`.
      needs_all: the mode can't do with fewer workers than all.
    """

    wait_s: float
    least_workers: int | None = None
    needs_all: bool = False


class Repeated:
    """Says what is waited for: when that changes, and every 10 s."""

    def __init__(self, notice: Callable[[str], None], clock: Callable[[], float]):
        self._notice = notice
        self._clock = clock
        self._about: object = None
        self._next_s = 0.0

    def __call__(self, line: str, about: object, *, once: bool = False) -> None:
        """Say a line. `about`: what it is about; equal things are said again only after 10 s, or never (`once`)."""
        now_s = self._clock()
        if about != self._about or now_s >= self._next_s and not once:
            self._about, self._next_s = about, now_s + SAY_EVERY_S
            self._notice(line)


class Gathering:
    """The wait of a chief for the servers of all other tasks."""

    def __init__(
        self, topology: ClusterTopology, patience: Patience, requests: StopRequests, notice: Callable[[str], None],
        *, reach: Reach = working, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ):  # fmt: skip
        others = [task for task in topology.tasks if task != topology.leader]
        self._addresses = {task: address for task in others if (address := topology.address(task))}
        self._patience = patience
        self._requests = requests
        self._notice = notice
        self._say = Repeated(notice, clock)
        self._reach = reach
        self._clock = clock
        self._sleep = sleep

    def workers(self) -> int | None:
        """Return how many workers are there, once all that is needed is; None when told to stop, or in vain."""
        began_s, rest_s = self._clock(), None
        while self._requests.count == 0:
            with contextlib.suppress(OSError):  # a shared folder that can't be read just now
                writing.check()  # a newer leader may have begun meanwhile
            there, now_s = self._reach(self._addresses), self._clock()
            missing = [task for task in self._addresses if task not in there]
            workers = sum(task.type == WORKER for task in there)
            rest_s = (rest_s or now_s) if self._may_begin(missing, workers) else None
            if not missing:
                self._notice(CONNECTED("all other tasks answer"))
                return workers
            if rest_s is not None and (self._patience.least_workers is not None or now_s - rest_s >= REST_S):
                of_all = f"{workers} of {workers + len(missing)} workers"
                self._notice(f"beginning with {of_all}; {self._names(missing)} may come later")
                return workers
            waited_s = now_s - began_s
            if waited_s >= self._patience.wait_s:
                self._notice(f"{self._names(missing)} did not answer for {self._patience.wait_s:g} s")
                return None
            line = f"waiting for {self._names(missing)} ({waited_s:.0f} of {self._patience.wait_s:g} s)"
            self._say(WAITING(line), missing)
            self._pause()
        return None

    def _may_begin(self, missing: Sequence[Task], workers: int) -> bool:
        only_workers = all(task.type == WORKER for task in missing)
        return only_workers and not self._patience.needs_all and workers >= (self._patience.least_workers or 1)

    def _pause(self) -> None:
        until_s = self._clock() + PROBE_EVERY_S
        while self._clock() < until_s and self._requests.count == 0:
            self._sleep(_SLEEP_S)

    def _names(self, tasks: Sequence[Task]) -> str:
        more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
        return ", ".join(f"{task} ({self._addresses[task]})" for task in tasks[:_NAMED]) + more
