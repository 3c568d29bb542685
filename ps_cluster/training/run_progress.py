"""How far a run is: the chief's copy of the ledger, and the rows and results read out of it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.training import ledger

RATE_WINDOW_S = 10.0


class RunProgress:
    """What was scheduled and what the parameter servers say was applied.

    The chief reads only the open range of the ledger: from the first step that is not applied to the last one scheduled.
    """

    def __init__(self, config: RunConfig, train_examples: int):
        self._train_examples = train_examples
        self._config = config
        self._total = config.total_updates(train_examples)
        self._steps_per_update = config.steps_per_update
        self.ledgers = np.zeros([config.slices, config.total_steps(train_examples), len(ledger.COLUMNS)])
        self._counts = dict.fromkeys(("version", "refused", "dropped", "accepted"), 0)
        self._scheduled = 0
        self._first_open = 0
        self.high_water = 0
        self._applied_before = np.zeros([self.ledgers.shape[1]], bool)
        self._train_seconds_before = 0.0
        self._started: float | None = None
        self._gradients = 0
        self._examples = 0
        self._workers: Counter[tuple[int, int, str]] = Counter()
        self._unreported: list[np.ndarray] = []
        self._points: deque[tuple[float, int, int]] = deque()

    def resume(self, ledgers: np.ndarray, train_seconds: float) -> None:
        """Goes on from a checkpoint. `ledgers`: float64 [ps, steps, columns]."""
        self.high_water = ledgers.shape[1]
        self.ledgers[:, : self.high_water] = ledgers
        self._applied_before = ledger.applied(self.ledgers)
        self._count(ledger.merged_rows(ledgers))
        self._scheduled = self.applied
        self._train_seconds_before = train_seconds

    def start(self) -> None:
        """The first step is about to be scheduled: training time starts to count."""
        self._started = time.time()

    def missing_steps(self) -> np.ndarray:
        """int64 [k]: the step ids that are not applied, in order."""
        return np.flatnonzero(~ledger.applied(self.ledgers))

    def scheduled_steps(self, step_ids: np.ndarray) -> None:
        self._scheduled += len(step_ids)
        self.high_water = max(self.high_water, int(step_ids[-1]) + 1)

    def scheduled_updates(self, end: int) -> None:
        """All steps of the updates below `end` are scheduled."""
        self._scheduled = max(self._scheduled, end)
        self.high_water = self._scheduled * self._steps_per_update

    @property
    def open_range(self) -> tuple[int, int]:
        return self._first_open, self.high_water

    def update(self, rows: np.ndarray, counts: np.ndarray, *, first: int) -> None:
        """Takes in what `ParameterStore.read_ledgers` returned for the steps from `first` on."""
        span = slice(first, first + rows.shape[1])
        known = ledger.applied(self.ledgers[:, span])
        self.ledgers[:, span] = rows
        applied = ledger.applied(rows)
        fresh = ledger.merged_rows(rows[:, applied & ~known])
        self._count(fresh)
        self._unreported.append(fresh)
        self._counts = dict(zip(self._counts, counts.max(axis=0).tolist()))
        if self._steps_per_update == 1:
            self._first_open = first + int(np.argmin(np.append(applied, False)))
        else:  # a step of a backup worker stays open, but not beyond its round
            self._first_open = self.applied * self._steps_per_update
        now = time.time()
        self._points.append((now, self.applied, self.examples))
        while now - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()

    def _count(self, rows: np.ndarray) -> None:
        self._gradients += len(rows)
        for worker in ledger.per_worker(rows):
            for what in ("updates", "examples"):
                self._workers[worker["index"], worker["pid"], what] += worker[what]
            self._examples += worker["examples"]

    @property
    def applied(self) -> int:
        """Updates of the parameters."""
        return self._gradients // self._config.gradients_per_update

    @property
    def total(self) -> int:
        """Updates of the whole run."""
        return self._total

    @property
    def completed(self) -> bool:
        return self.applied == self._total

    @property
    def outstanding(self) -> int:
        """Updates scheduled and not yet applied."""
        return self._scheduled - self.applied

    @property
    def examples(self) -> int:
        return self._examples

    @property
    def train_seconds(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._train_seconds_until(time.time())

    def _train_seconds_until(self, when: float) -> float:
        return self._train_seconds_before + (float(when) - self._started if self._started else 0.0)

    def updates_per_second(self) -> float:
        return self._rate(1)

    def _rate(self, field: int) -> float:
        if len(self._points) < 2 or self._points[-1][0] == self._points[0][0]:
            return 0.0
        oldest, newest = self._points[0], self._points[-1]
        return (newest[field] - oldest[field]) / (newest[0] - oldest[0])

    def row(self, phase: str) -> dict:
        """A row of metrics/progress.jsonl; means are over the updates that no earlier row has covered."""
        fresh = np.concatenate([np.zeros([0, len(ledger.COLUMNS)]), *self._unreported])
        self._unreported.clear()

        def mean(name: str) -> float | None:
            """None also for what is no number any more, which JSON can't say; "diverged" does."""
            value = ledger.column(fresh, name).mean() if len(fresh) else np.nan
            return float(value) if np.isfinite(value) else None

        fresh_examples = ledger.column(fresh, "examples").sum()
        return {
            "time": time.time(),
            "phase": phase,
            "applied": self.applied,
            "scheduled": self._scheduled,
            "total": self._total,
            "examples": self.examples,
            "examples_per_second": self._rate(2),
            "train_seconds": self.train_seconds,
            "epoch": self.examples / self._train_examples,
            "loss": mean("loss"),
            "diverged": not bool(np.isfinite(ledger.column(fresh, "loss")).all()),
            "accuracy": float(ledger.column(fresh, "correct").sum() / fresh_examples) if len(fresh) else None,
            "learning_rate": mean("learning_rate"),
            "staleness_mean": mean("staleness"),
            "dropped": self._counts["dropped"],
            "workers": self._per_worker(),
        }

    def _per_worker(self) -> list[dict[str, int]]:
        return [
            {"index": index, "pid": pid, **{what: self._workers[index, pid, what] for what in ("updates", "examples")}}
            for index, pid in sorted({(index, pid) for index, pid, _ in self._workers})
        ]

    def result(self, slice_lengths: Sequence[int]) -> dict:
        """What training.json says of the finished training."""
        rows = ledger.merged_rows(self.ledgers)
        fresh = self.ledgers[0][ledger.applied(self.ledgers) & ~self._applied_before]
        times = ledger.column(fresh, "applied_time")
        return {
            "completed": self.completed,
            "train_seconds": self._train_seconds_until(times.max()) if len(times) else self._train_seconds_before,
            "examples_per_second": examples_per_second(fresh, self._config.training.backup_workers),
            "first_update_time": float(times.min()) if len(times) else None,
            "last_update_time": float(times.max()) if len(times) else None,
            "updates": {
                "scheduled": self._scheduled,
                "applied": self.applied,
                "duplicated": self._counts["accepted"] - self._gradients,
                "lost": self._scheduled - self.applied,
                "replays_refused": self._counts["refused"],
            },
            "gradients": {
                "scheduled": self._scheduled * self._steps_per_update,
                "applied": self._gradients,
                "dropped": self._counts["dropped"],
                "per_update": self._config.gradients_per_update,
            },
            "staleness": ledger.staleness_summary(rows),
            "workers": self._per_worker(),
            "parameter_servers": [{"index": i, "parameters": n} for i, n in enumerate(slice_lengths)],
        }


def examples_per_second(rows: np.ndarray, backup_workers: int = 0) -> float | None:
    """Images a second of training alone.

    Counted from the moment when every worker process had its first update applied (before it, TensorFlow still builds
    the worker's graph) to the last update; `backup_workers` of them may be late. None where no update came after that
    moment.
    """
    if not len(rows):
        return None
    times, pids = ledger.column(rows, "applied_time"), ledger.column(rows, "pid")
    first_times = sorted(times[pids == pid].min() for pid in np.unique(pids))
    warm = first_times[max(0, len(first_times) - 1 - backup_workers)]
    after = times > warm
    if not after.any():
        return None
    return float(ledger.column(rows, "examples")[after].sum() / (times.max() - warm))
