"""Track the dispatches that are not done, and the process that works on each. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ps_cluster.clock import AwakeClock


class _Dispatch:
    def __init__(self, steps: set[int]):
        self.steps = steps  # that are open; a repeat has the same set
        self.pid: int | None = None  # of the process that pushed its newest update
        self.news_s: float | None = None  # when its work began, or it had its newest update; None while it waits
        self.is_repeated = False


class OpenDispatches:
    """The dispatches with steps that are not yet applied, in the order in which they were handed out.

    Workers take them in this order, so work on one has begun if a later one has news, or if there are no more than
    workers. A finished one takes no memory.
    """

    def __init__(self, clock: Callable[[], float] | None = None):
        self._of_step: dict[int, list[_Dispatch]] = {}  # all steps of a dispatch share a list: it, and its repeats
        self._open: dict[_Dispatch, None] = {}
        self._clock = clock or AwakeClock()

    def add(self, steps: np.ndarray) -> None:
        """Add `steps` (int64 [k]) as one dispatch."""
        dispatch = _Dispatch(set(steps.tolist()))
        self._open[dispatch] = None
        dispatches = [dispatch]  # one list for all steps of the dispatch
        self._of_step |= dict.fromkeys(dispatch.steps, dispatches)

    def take(self, rows: np.ndarray) -> None:
        """Remove the steps of `rows`, which were applied: a structured array [k] of ROW."""
        now_s = self._clock()
        for step, pid in zip(rows["step"].tolist(), rows["pid"].tolist()):
            for dispatch in (dispatches := self._of_step.pop(step, [])):
                if dispatch is dispatches[0] or dispatch.news_s is not None:  # a repeat that waits has no news
                    dispatch.pid, dispatch.news_s = int(pid), now_s
                dispatch.steps.discard(step)
                if not dispatch.steps:
                    del self._open[dispatch]

    def late(self, after_s: float, workers: int) -> list[np.ndarray]:
        """Return the open steps (int64 [k]) of each dispatch whose worker gave no news for so long, to be repeated.

        Each is returned once. The repeat is a dispatch like others: it is late if it gives no news once work on it has
        begun. Call this at each look, as that is how the beginning of work is noticed.

        Args:
          workers: how many take part now.
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
                repeat = _Dispatch(dispatch.steps)
                self._open[repeat] = None
                self._of_step[next(iter(repeat.steps))].append(repeat)
                repeats.append(np.array(sorted(repeat.steps), np.int64))
        return repeats

    def pids(self) -> list[int | None]:
        """Return for each open dispatch the pid that pushed its newest update; None where it has no update yet."""
        return [dispatch.pid for dispatch in self._open]
