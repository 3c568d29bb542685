"""Measure how long the workers' steps take, and derive how long to wait for an update."""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

from ps_cluster.config import RunConfig

FIRST_UPDATE_S = 600.0
GAPS = 9  # the number of measurements kept for each worker; their median is its pace, so a few pauses do not count


class WorkerPace:
    """Measures the time between the updates of each worker, as of the last check of the ledger.

    One thread calls `add`. Any thread may read the other attributes, because `add` publishes only a finished number.

    Attributes:
      step_s: the seconds that a step of the slowest worker takes; None until one worker has been measured.
    """

    def __init__(self, config: RunConfig):
        self.step_s: float | None = None
        self._config = config
        # (worker, pid) → when its newest update was applied, unix s.
        self._last_update: dict[tuple[int, int], float] = {}
        self._gaps: dict[int, deque[float]] = {}  # worker → the mean seconds between its updates, one value per check

    def add(self, rows: np.ndarray) -> None:
        """Measure the mean time between the updates of each worker's process, including all waits of the worker.

        All times in this measurement come from the server's clock: they are the times at which updates were applied.

        Args:
          rows: the rows of the steps that a check of the ledger found applied, a structured array [k] of `ledger.ROW`.
        """
        for worker, pid in np.unique(np.stack([rows["worker"], rows["pid"]], axis=1).astype(np.int64), axis=0).tolist():
            times = rows["applied_time"][(rows["worker"] == worker) & (rows["pid"] == pid)]
            last = float(times.max())
            if (before := self._last_update.get((worker, pid))) is not None:
                self._gaps.setdefault(worker, deque(maxlen=GAPS)).append(max(0.0, last - before) / len(times))
            self._last_update[worker, pid] = last
        self.step_s = max(map(median, self._gaps.values()), default=None)

    @property
    def longest_update_s(self) -> float:
        """The longest time between two updates of a healthy run, in seconds.

        It is estimated from the settings and the measured times of steps.
        """
        return self._config.longest_update_seconds(self.step_s or 0.0)

    @property
    def longest_wait_s(self) -> float:
        """The seconds without an update after which the next update counts as late.

        The value is at least `FIRST_UPDATE_S` until a step has been measured.
        """
        step_s = self.step_s  # another thread may measure the first step meanwhile
        longest_s = self._config.longest_update_seconds(step_s or 0.0)
        return max(longest_s, FIRST_UPDATE_S) if step_s is None else longest_s
