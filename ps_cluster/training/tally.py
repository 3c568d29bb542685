"""Running sums over the ledger's rows, so that no row is read twice. No TensorFlow."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import numpy as np

from ps_cluster.run.rows.checkpoint import TallyState
from ps_cluster.run.rows.progress import STALENESS_BOUNDS, StalenessBuckets, WorkerRow
from ps_cluster.run.rows.training import StalenessRow


class Tally:
    """Sums over the steps that are applied on every slice. Checkpoints hold them as JSON.

    Attributes:
      gradients: steps applied. examples: images in them.
      staleness: staleness → number of steps.
      bad_losses: steps whose loss was NaN or infinite.
    """

    def __init__(self, state: TallyState = TallyState()):
        """Start from `state`, the property of an earlier tally."""
        self.examples = state.examples
        self.staleness = Counter({int(value): count for value, count in state.staleness.items()})
        self.gradients = sum(self.staleness.values())
        self.bad_losses = state.bad_losses
        self._workers = {(index, pid): [updates, examples] for index, pid, updates, examples in state.workers}
        # Worker → when its first update was applied [training seconds], and the examples of all workers until then.
        self._first_updates = {worker: (time, examples) for worker, time, examples in state.first_updates}

    @property
    def state(self) -> TallyState:
        return TallyState(
            examples=self.examples,
            workers=[(*key, *counts) for key, counts in sorted(self._workers.items())],
            staleness={str(value): count for value, count in sorted(self.staleness.items())},
            first_updates=[(worker, *first) for worker, first in self._first_updates.items()],
            bad_losses=self.bad_losses,
        )

    def add(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        """Add steps.

        Args:
          rows: a structured array [k] of ROW. seconds: float64 [k], when each was applied, in training seconds.
        """
        examples = rows["examples"].astype(np.int64)
        self._note_first_updates(rows["worker"].astype(np.int64), seconds, examples)
        self.examples += int(examples.sum())
        values, counts = np.unique(rows["staleness"].astype(np.int64), return_counts=True)
        self.staleness.update(dict(zip(values.tolist(), counts.tolist())))
        self.gradients += len(rows)
        self.bad_losses += int(np.count_nonzero(~np.isfinite(rows["loss"])))
        self.add_work(rows)

    def add_work(self, rows: np.ndarray) -> None:
        """Add steps to the work of the processes that the rows name, and to nothing else. `rows`: as for `add`."""
        examples = rows["examples"].astype(np.int64)
        keys, which = np.unique(np.stack([rows["worker"], rows["pid"]], axis=1), axis=0, return_inverse=True)
        for number, (index, pid) in enumerate(keys.astype(np.int64).tolist()):
            mine = which.reshape(-1) == number
            before = self._workers.get((index, pid), [0, 0])
            self._workers[index, pid] = [before[0] + int(mine.sum()), before[1] + int(examples[mine].sum())]

    def _note_first_updates(self, workers: np.ndarray, seconds: np.ndarray, examples: np.ndarray) -> None:
        for worker in set(np.unique(workers).tolist()) - self._first_updates.keys():
            first = float(seconds[workers == worker].min())
            self._first_updates[worker] = first, self.examples + int(examples[seconds <= first].sum())

    def workers(self) -> list[WorkerRow]:
        """Return updates and examples of each worker process. A restarted worker has several rows."""
        return [
            WorkerRow(index=index, pid=pid, updates=updates, examples=examples)
            for (index, pid), (updates, examples) in sorted(self._workers.items())
        ]

    def staleness_buckets(self) -> StalenessBuckets:
        """Return how many steps had a staleness up to each bound."""
        counts = [0] * (len(STALENESS_BOUNDS) + 1)
        for value, count in self.staleness.items():
            counts[bisect_left(STALENESS_BOUNDS, value)] += count
        return StalenessBuckets(counts=counts, sum=sum(value * count for value, count in self.staleness.items()))

    def staleness_summary(self) -> StalenessRow:
        """Return mean, percentiles, maximum and histogram; all None or empty where no step is counted."""
        if not self.staleness:
            return StalenessRow()
        values = np.array(sorted(self.staleness))
        counts = np.array([self.staleness[value] for value in values.tolist()])
        up_to = counts.cumsum()

        def percentile(percent: float) -> int:
            """Return a percentile: the lower of two neighbours, as numpy's method "lower"."""
            return int(values[np.searchsorted(up_to, int(percent / 100 * (up_to[-1] - 1)), side="right")])

        return StalenessRow(
            mean=float((values * counts).sum() / up_to[-1]),
            p50=percentile(50),
            p95=percentile(95),
            max=int(values[-1]),
            histogram={str(value): int(count) for value, count in zip(values, counts)},
        )

    def examples_per_second(self, last_update: float | None, backup_workers: int) -> float | None:
        """Return examples per second, from when every worker had its first update to the last update.

        Before that, TensorFlow still builds some worker's graph. None where no update came after that moment.

        Args:
          last_update: in training seconds; None where there was none.
          backup_workers: how many workers may be late.
        """
        firsts = sorted(self._first_updates.values())
        if last_update is None or not firsts:
            return None
        began, before = firsts[max(0, len(firsts) - 1 - backup_workers)]
        return (self.examples - before) / (last_update - began) if last_update > began else None
