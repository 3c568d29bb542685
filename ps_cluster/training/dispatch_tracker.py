"""Track the open dispatches and the process that works on each. This module does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ps_cluster.clock import AwakeClock


class _OpenDispatch:
    def __init__(self, steps: set[int]):
        self.steps = steps  # the open steps; a repeat shares this set with the original dispatch
        self.pid: int | None = None  # the process that pushed the newest update of the dispatch
        # The time of the newest update, or of the start if there is no update yet; None while no worker has begun it.
        self.news_s: float | None = None
        self.is_repeated = False


class OpenDispatches:
    """Keeps the dispatches with steps that are not yet applied, in the order in which they were handed out.

    Workers take dispatches in this order. So a dispatch has begun if a step of a later dispatch was applied. All open
    dispatches have begun if there are no more of them than workers. A finished dispatch takes no memory.
    """

    def __init__(self, clock: Callable[[], float] | None = None):
        self._of_step: dict[int, list[_OpenDispatch]] = {}  # open step → its dispatch, then the repeats
        self._open: dict[_OpenDispatch, None] = {}
        self._clock = clock or AwakeClock()

    def add(self, steps: np.ndarray) -> None:
        """Add `steps` (int64 [k]) as one dispatch."""
        dispatch = _OpenDispatch(set(steps.tolist()))
        self._open[dispatch] = None
        dispatches = [dispatch]  # one list for all steps of the dispatch
        self._of_step |= dict.fromkeys(dispatch.steps, dispatches)

    def take(self, rows: np.ndarray) -> None:
        """Remove steps that were applied. `rows`: their rows in the ledger, a structured array [k] of `ledger.ROW`."""
        now_s = self._clock()
        for step, pid in zip(rows["step"].tolist(), rows["pid"].tolist()):
            for dispatch in (dispatches := self._of_step.pop(step, [])):
                if dispatch is dispatches[0] or dispatch.news_s is not None:  # the update is not from a waiting repeat
                    dispatch.pid, dispatch.news_s = int(pid), now_s
                dispatch.steps.discard(step)
                if not dispatch.steps:
                    del self._open[dispatch]

    def take_late(self, after_s: float, workers: int) -> list[np.ndarray]:
        """Return the open steps (int64 [k]) of each dispatch that is late, so that the caller hands them out again.

        A dispatch is late if it had no update for `after_s` seconds after its start or its newest update. It is
        returned only once, but its repeat counts as a new dispatch, which may be late as well. Call this method after
        each check of the ledger, because it also records when work on a dispatch begins.

        Args:
          workers: the number of workers that take part now.
        """
        now_s = self._clock()
        repeats, has_begun = [], len(self._open) <= workers
        for dispatch in reversed(list(self._open)):
            has_begun |= dispatch.news_s is not None
            if not has_begun:
                continue
            if dispatch.news_s is None:
                dispatch.news_s = now_s
            elif now_s - dispatch.news_s > after_s and not dispatch.is_repeated:
                dispatch.is_repeated = True
                repeat = _OpenDispatch(dispatch.steps)
                self._open[repeat] = None
                self._of_step[next(iter(repeat.steps))].append(repeat)
                repeats.append(np.array(sorted(repeat.steps), np.int64))
        return repeats

    def pids(self) -> list[int | None]:
        """Return, for each dispatch that has not ended, the pid of the process that pushed its newest update.

        The pid is None if no update of the dispatch was pushed yet.
        """
        return [dispatch.pid for dispatch in self._open]
