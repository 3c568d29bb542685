"""Add up the applied steps: their examples and staleness, and the work of each worker process."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import numpy as np

from ps_cluster.runs.checkpoints import TallyState
from ps_cluster.runs.result_rows import STALENESS_BOUNDS, StalenessBuckets, StalenessRow, TableTraffic, WorkerRow


class AppliedTotals:
    """Running sums over the steps that are applied on every shard. Checkpoints hold them as JSON.

    Attributes:
      gradients: the number of steps applied.
      examples: the number of examples in these steps.
      staleness: for each staleness that occurred, the number of steps that had it.
      bad_losses: the number of steps whose loss was NaN or infinite.
      rows, row_values: how many rows of embedding tables these steps pulled and pushed, and how many numbers these
        rows held.
    """

    def __init__(self, state: TallyState = TallyState()):
        """Continue from the totals that a checkpoint holds. By default, all totals start at 0."""
        self.examples = state.examples
        self.staleness = Counter({int(value): count for value, count in state.staleness.items()})
        self.gradients = sum(self.staleness.values())
        self.bad_losses = state.bad_losses
        self.rows, self.row_values = state.rows, state.row_values
        self._workers = {(index, pid): [updates, examples] for index, pid, updates, examples in state.workers}
        # Worker → the time of its first update in training seconds, and the examples of all workers until then.
        self._first_updates = {worker: (time, examples) for worker, time, examples in state.first_updates}

    @property
    def state(self) -> TallyState:
        return TallyState(
            examples=self.examples,
            workers=[(*key, counts[0], counts[1]) for key, counts in sorted(self._workers.items())],
            staleness={str(value): count for value, count in sorted(self.staleness.items())},
            first_updates=[(worker, *first) for worker, first in self._first_updates.items()],
            bad_losses=self.bad_losses,
            rows=self.rows,
            row_values=self.row_values,
        )

    def add(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        """Add applied steps to the totals.

        Args:
          rows: the steps' rows in the ledger, a structured array [k] of `ledger.ROW`.
          seconds: float64 [k], the training time, in seconds, at which each step was applied.
        """
        examples = rows["examples"].astype(np.int64)
        self._note_first_updates(rows["worker"].astype(np.int64), seconds, examples)
        self.examples += int(examples.sum())
        values, counts = np.unique(rows["staleness"].astype(np.int64), return_counts=True)
        self.staleness.update(dict(zip(values.tolist(), counts.tolist())))
        self.gradients += len(rows)
        self.bad_losses += int(np.count_nonzero(~np.isfinite(rows["loss"])))
        self.rows += int(rows["rows"].sum())
        self.row_values += int(rows["row_values"].sum())
        self.add_work(rows)

    def add_work(self, rows: np.ndarray) -> None:
        """Add steps to the counts of their worker processes, but not to the totals over all workers.

        Args:
          rows: the steps' rows in the ledger, a structured array [k] of `ledger.ROW`.
        """
        examples = rows["examples"].astype(np.int64)
        keys, which = np.unique(np.stack([rows["worker"], rows["pid"]], axis=1), axis=0, return_inverse=True)
        for number, (index, pid) in enumerate(keys.astype(np.int64).tolist()):
            of_process = which.reshape(-1) == number
            before = self._workers.get((index, pid), [0, 0])
            self._workers[index, pid] = [before[0] + int(of_process.sum()), before[1] + int(examples[of_process].sum())]

    def _note_first_updates(self, workers: np.ndarray, seconds: np.ndarray, examples: np.ndarray) -> None:
        for worker in set(np.unique(workers).tolist()) - self._first_updates.keys():
            first = float(seconds[workers == worker].min())
            self._first_updates[worker] = first, self.examples + int(examples[seconds <= first].sum())

    def workers(self) -> list[WorkerRow]:
        """Return the updates and examples of each worker process. A restarted worker has one row for each process."""
        return [
            WorkerRow(index=index, pid=pid, updates=updates, examples=examples)
            for (index, pid), (updates, examples) in sorted(self._workers.items())
        ]

    @property
    def tables(self) -> TableTraffic | None:
        """The number of table rows that the steps pulled and pushed, and of the values in them; None without any rows."""
        return TableTraffic(rows=self.rows, row_values=self.row_values) if self.rows else None

    def has_no_loss(self, least: int) -> bool:
        """Return whether there were at least `least` steps, all of them with a loss that is NaN or infinite."""
        return self.gradients >= least and self.bad_losses == self.gradients

    def staleness_buckets(self) -> StalenessBuckets:
        """Return the number of steps whose staleness is in each bucket of STALENESS_BOUNDS."""
        counts = [0] * (len(STALENESS_BOUNDS) + 1)
        for value, count in self.staleness.items():
            counts[bisect_left(STALENESS_BOUNDS, value)] += count
        return StalenessBuckets(counts=counts, sum=sum(value * count for value, count in self.staleness.items()))

    def staleness_summary(self) -> StalenessRow:
        """Return the mean, percentiles, maximum and histogram of the staleness.

        If no step is counted, the histogram is empty, and the other values are None.
        """
        if not self.staleness:
            return StalenessRow()
        values = np.array(sorted(self.staleness))
        counts = np.array([self.staleness[value] for value in values.tolist()])
        up_to = counts.cumsum()

        def percentile(percent: float) -> int:
            """Return a percentile. Between two values, return the lower one, as numpy's method "lower" does."""
            return int(values[np.searchsorted(up_to, int(percent / 100 * (up_to[-1] - 1)), side="right")])

        return StalenessRow(
            mean=float((values * counts).sum() / up_to[-1]),
            p50=percentile(50),
            p95=percentile(95),
            max=int(values[-1]),
            histogram={str(value): int(count) for value, count in zip(values, counts)},
        )

    def examples_per_second(self, last_update: float | None, backup_workers: int) -> float | None:
        """Return the examples per second while all workers trained.

        The measured time begins when every worker has had its first update, because TensorFlow builds a worker's graph
        before the first update of that worker. With b backup workers, it begins when all workers but b have had it. It
        ends with the last update. Return None if there was no update, or if the measured time is 0.

        Args:
          last_update: the training time of the last update, in seconds; None if there was none.
          backup_workers: the number b of backup workers.
        """
        firsts = sorted(self._first_updates.values())
        if last_update is None or not firsts:
            return None
        began, before = firsts[max(0, len(firsts) - 1 - backup_workers)]
        return (self.examples - before) / (last_update - began) if last_update > began else None
