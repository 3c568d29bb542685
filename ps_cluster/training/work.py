"""The work that the chief hands out: dispatches of steps. (Those of rounds are in modes/sync_ps.py.)"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.cluster_settings import dispatch_size
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.worker import Compute, steps_function

if TYPE_CHECKING:  # the launcher imports this module, and not what a training keeps
    from ps_cluster.training.run_progress import RunProgress


class ScheduleDispatch(Protocol):
    """Sends a dispatch to any free worker: a graph, and its int64 argument (step ids, or a version)."""

    def __call__(self, function: Callable[..., Any], what: np.ndarray | int) -> None: ...


class Work(ABC):
    """The work of a run, in the dispatches of a mode.

    Attributes:
      handed_out: the last step id that was handed out, -1 before the first.
      ends: whether nothing more will be handed out.
      workers: how many work now; the chief keeps it up to date.
    """

    def __init__(
        self,
        config: RunConfig,
        progress: RunProgress,
        store: ParameterStore,
        compute: Compute,
        schedule: ScheduleDispatch,
    ):
        self.handed_out = -1
        self.ends = False
        self.workers = config.training_workers
        self._config = config
        self._progress = progress
        self._schedule = schedule
        self._function = self.function(store, compute)

    @abstractmethod
    def function(self, store: ParameterStore, compute: Compute) -> Callable[..., Any]:
        """Return the graph of a dispatch. Its arguments: step ids or a version, and when it was scheduled, unix s."""

    @abstractmethod
    def dispatches(self) -> Iterator[bool]:
        """Schedule a dispatch (or one for every worker) and yield True; yield False while the ledger has no room."""

    def repeat(self, steps: np.ndarray) -> None:
        """Give steps (int64 [k]) of a dispatch without news to another worker too; nothing where that is no use."""

    @property
    def two_dispatches_each(self) -> float:
        """The number of updates in two dispatches per worker, one under way and one waiting."""
        steps = 2 * self.workers * self._size(self._steps_per_second, left=math.inf)
        return steps / self._config.steps_per_update

    @property
    def _steps_per_second(self) -> float:
        """Steps per second of one worker."""
        return self._progress.updates_per_second() * self._config.steps_per_update / self.workers

    def _size(self, per_second: float, left: float) -> int:
        wanted = self._config.cluster.steps_per_dispatch
        return dispatch_size(wanted, workers=self.workers, per_second=per_second, left=left)


class Steps(Work):
    """Dispatches of step ids, each for one worker. Steps that were under way before a resume come first."""

    def function(self, store: ParameterStore, compute: Compute) -> Callable[..., Any]:
        self._make_of_repeats = partial(steps_function, store, compute, self._config, repeats=True)
        return steps_function(store, compute, self._config)

    @cached_property
    def _of_repeats(self) -> Callable[..., Any]:
        return self._make_of_repeats()

    def repeat(self, steps: np.ndarray) -> None:
        self._schedule(self._of_repeats, steps)

    def dispatches(self) -> Iterator[bool]:
        again, following, total = self._progress.missing_steps, self._progress.next_step, self._progress.total
        while left := len(again) + total - following:
            size = self._size(self._steps_per_second, left=left / self.workers)
            if len(again):  # not mixed with new ones, which may have to wait until these are done
                step_ids, again = np.split(again, [min(size, len(again))])
            else:
                step_ids = np.arange(following, min(total, following + size))
                following = int(step_ids[-1]) + 1
            while step_ids[-1] >= self._progress.end_of_window:
                yield False
            # First counted, then sent: a look in another thread may find its first update at once.
            self._progress.scheduled(step_ids)
            self._schedule(self._function, step_ids)
            self.handed_out = int(step_ids[-1])
            self.ends = not len(again) and following == total
            yield True
