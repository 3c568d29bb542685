"""A row of metrics/progress.jsonl: how far the training is."""

from __future__ import annotations

from ps_cluster.rows.base import Count, Index, Loss, Number, Pid, Row, Seconds, Share, Word
from ps_cluster.training.training_clock import Times


class WorkerRow(Row):
    """The work of one process. A worker that was started again has a row for each."""

    index: Index
    pid: Pid
    updates: Count
    examples: Count = 0


class ProgressRow(Row):
    """The training as the leader saw it last; means are over the updates that no earlier row has covered.

    Attributes:
      time, monotonic: unix seconds, and seconds that other processes of this machine can compare with theirs.
      life: of the launcher (run_dir.LIFE); None for a task without one.
      scheduled, applied, total: updates. written: rows of the ledger read for its proof and tables.
      loss, accuracy, learning_rate, staleness_mean: None without an update, or where it is no number any more.
      workers: what each process did. dispatches: of the open ones, the pid of who is at it; None where nobody is known.
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
    learning_rate: Number | None = None
    staleness_mean: Seconds | None = None
    dropped: Count = 0
    workers: list[WorkerRow] = []
    dispatches: list[Pid | None] = []
    written: Count = 0
    save_seconds: Seconds | None = None
