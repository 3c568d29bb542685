"""Decide which steps the chief hands out, and how it groups them into dispatches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.dispatch_size import dispatch_size
from ps_cluster.training.worker import DispatchGraph

if TYPE_CHECKING:  # imports what the launcher does not need
    from ps_cluster.training.run_progress import RunProgress


ScheduleDispatch: TypeAlias = Callable[[DispatchGraph, np.ndarray | int], None]
"""Sends a dispatch to any free worker. Arguments: the graph, and its int64 argument (step ids, or a version)."""


@dataclass(frozen=True)
class DispatchGraphs:
    """The two graphs that a run dispatches. Each graph is built when it is first used.

    Attributes:
      make: returns the graph of a dispatch. Its argument is whether steps are handed out a second time (`Mode.dispatch`).
    """

    make: Callable[[bool], DispatchGraph]

    @cached_property
    def first(self) -> DispatchGraph:
        """The graph for steps that are handed out for the first time."""
        return self.make(False)

    @cached_property
    def again(self) -> DispatchGraph:
        """The graph for steps that may have been applied already."""
        return self.make(True)


class StepSource(ABC):
    """The base class of step sources. A step source groups the steps of a run into dispatches, and schedules these.

    Attributes:
      ends: whether no more steps will be handed out.
      workers: the number of workers that take part now. The chief updates it.
    """

    def __init__(
        self,
        config: RunConfig,
        progress: RunProgress,
        graphs: DispatchGraphs,
        schedule: ScheduleDispatch,
    ):
        self.ends = False
        self.workers = config.training_workers
        self._config = config
        self._progress = progress
        self._graphs = graphs
        self._schedule = schedule

    @abstractmethod
    def hand_out(self) -> Iterator[bool]:
        """In each iteration, schedule a dispatch (or one for every worker) and yield True.

        While the ledger has no room, schedule nothing and yield False.
        """

    def repeat(self, steps: np.ndarray) -> None:
        """Give the open steps (int64 [k]) of a late dispatch to another worker too. By default this does nothing."""
        return None

    @property
    def updates_in_two_dispatches(self) -> float:
        """The number of updates in two dispatches per worker: one dispatch is under way, and the other waits."""
        steps = 2 * self.workers * self._size(self._steps_per_second, left=math.inf)
        return steps / self._config.steps_per_update

    @property
    def _steps_per_second(self) -> float:
        """The number of steps per second of one worker."""
        return self._progress.speed.updates_per_second * self._config.steps_per_update / self.workers

    def _size(self, per_second: float, left: float) -> int:
        wanted = self._config.cluster.steps_per_dispatch
        return dispatch_size(wanted, workers=self.workers, per_second=per_second, left=left)


class AsynchronousSteps(StepSource):
    """Hands out step ids, each dispatch for one worker. Steps that were under way before a resume come first."""

    def repeat(self, steps: np.ndarray) -> None:
        self._schedule(self._graphs.again, steps)

    def hand_out(self) -> Iterator[bool]:
        again, following, total = self._progress.missing_steps, self._progress.next_step, self._progress.total
        while left := len(again) + total - following:
            size = self._size(self._steps_per_second, left=left / self.workers)
            end_of_window = self._progress.end_of_window
            # Old and new steps are not mixed, because new steps may have to wait until the old ones are done.
            if len(again):
                room = int(np.searchsorted(again, end_of_window))
                step_ids, again = np.split(again, [min(size, room)])
            else:
                end = min(self._progress.end_of_dispatch(following, size), end_of_window)
                step_ids = np.arange(following, end)
                following += len(step_ids)
            if not len(step_ids):
                yield False
                continue
            # The dispatch is counted before it is sent, because another thread checks the ledger, and may find the
            # first update of the dispatch at once.
            self._progress.note_scheduled(step_ids)
            self._schedule(self._graphs.first, step_ids)
            self.ends = not len(again) and following == total
            yield True
