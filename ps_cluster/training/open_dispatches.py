"""Track the dispatches that are not done, and the process that works on each. No TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ps_cluster.clock import AwakeClock


class _Dispatch:
    def __init__(self, now_s: float):
        self.pid: int | None = None  # of the process that pushed its newest update
        self.news_s = now_s  # when it was handed out, or had its newest update


class OpenDispatches:
    """The dispatches with steps that are not yet applied. A finished one takes no memory."""

    def __init__(self, clock: Callable[[], float] | None = None):
        self._of_step: dict[int, _Dispatch] = {}
        self._clock = clock or AwakeClock()

    def add(self, steps: np.ndarray) -> None:
        """Add `steps` (int64 [k]) as one dispatch."""
        self._of_step |= dict.fromkeys(steps.tolist(), _Dispatch(self._clock()))

    def take(self, rows: np.ndarray) -> None:
        """Remove the steps of `rows`, which were applied: a structured array [k] of ROW."""
        now_s = self._clock()
        for step, pid in zip(rows["step"].tolist(), rows["pid"].tolist()):
            if (dispatch := self._of_step.pop(step, None)) is not None:
                dispatch.pid, dispatch.news_s = int(pid), now_s

    def late(self, after_s: float) -> list[np.ndarray]:
        """Return the open steps (int64 [k]) of each dispatch without news for so long; each counts from now again."""
        now_s = self._clock()
        if math.isinf(after_s):
            return []
        late: dict[_Dispatch, list[int]] = {}
        for step, dispatch in self._of_step.items():
            if now_s - dispatch.news_s > after_s:
                late.setdefault(dispatch, []).append(step)
        for dispatch in late:
            dispatch.news_s = now_s
        return [np.array(steps, np.int64) for steps in late.values()]

    def pids(self) -> list[int | None]:
        """Return for each open dispatch the pid that pushed its newest update; None where it has no update yet."""
        return [dispatch.pid for dispatch in dict.fromkeys(self._of_step.values())]
