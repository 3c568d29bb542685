"""A row of metrics/progress.jsonl: the progress of training; and the work of each process, which stands beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.run.rows.base import Count, Index, Loss, Number, Pid, Row, Seconds, Share, Word
from ps_cluster.run.training_clock import Times

STALENESS_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class StalenessBuckets(Row):
    """The staleness of all steps so far.

    Attributes:
      counts: steps up to each of STALENESS_BOUNDS and above the one before it; the last is above all bounds.
      sum: of their staleness.
    """

    counts: list[Count]
    sum: Count


class WorkerRow(Row):
    """The work of one process. A restarted worker has a row for each."""

    index: Index
    pid: Pid
    updates: Count
    examples: Count = 0


class Work(Row):
    """The file metrics/work.json: the work as of the newest row. It is replaced, so that it does not grow.

    Attributes:
      workers: of each process. dispatches: pid of the worker of each open one; None if unknown.
    """

    workers: list[WorkerRow] = []
    dispatches: list[Pid | None] = []


SAVING = "saving"  # the phase of rows that only say that a save goes on


class ProgressRow(Work):
    """The training as the leader last saw it. Means are over the updates since the row before.

    Attributes:
      time, monotonic: unix seconds, and monotonic seconds that processes of this machine can compare.
      life: of the launcher (run_dir.LIFE); None for a task without one.
      scheduled, applied, total: updates. written: rows of the ledger read for its proof and tables.
      loss, accuracy or error (the objective has one of them), learning_rate, staleness_mean: None without an update, or
        if not finite.
      staleness: of all steps so far. goodput: of all the time so far (training_clock.py).
      longest_wait_seconds: how long to wait for an update before it counts as a standstill.
      workers, dispatches: they are in metrics/work.json, as 1,000 workers would take 17 GB a day in each row.
    """

    time: Number = 0.0
    monotonic: Number = 0.0
    life: Word | None = None
    phase: Word
    applied: Count = 0
    scheduled: Count = 0
    total: Count | None = None
    examples: Count = 0
    examples_per_second: Seconds | None = None
    train_seconds: Number = 0.0
    times: Times = Times()
    epoch: Seconds | None = None
    loss: Loss | None = None
    diverged: bool = False
    accuracy: Share | None = None
    error: Loss | None = None
    learning_rate: Number | None = None
    staleness_mean: Seconds | None = None
    staleness: StalenessBuckets | None = None
    goodput: Number | None = None
    dropped: Count = 0
    written: Count = 0
    save_seconds: Seconds | None = None
    longest_wait_seconds: Seconds = 0.0


def with_work(work: Path, rows: Sequence[ProgressRow]) -> Sequence[ProgressRow]:
    """Return rows, the newest ones, with the work in metrics/work.json; as they are where it can't be read."""
    with contextlib.suppress(FileNotFoundError, UserError):
        newest = read_json(work, Work) if rows else Work()
        return [row.model_copy(update={name: getattr(newest, name) for name in Work.model_fields}) for row in rows]
    return rows
