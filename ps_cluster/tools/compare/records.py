"""Read the record of a finished run from its directory: every number that the comparison uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ps_cluster.config import RunConfig, load_config
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.runs.ledger import NO_ROWS
from ps_cluster.runs.ledger_csv import read_csv
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.phases import time_shares
from ps_cluster.runs.result_rows import BROKEN, ScoreRow, Summary, TimeLimitReached
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.compare.metric import Metric, metric_of

TIME_TOLERANCE = 0.02  # a share of the time limit: the last update may come this much before the limit
LONGEST_GAP = 0.5  # the longest gap between two scores that are interpolated, as a share of the run's examples


@dataclass(frozen=True)
class ScoreInTime:
    """One scored checkpoint.

    Attributes:
      value: the value of the run's metric; None if it is not finite.
      diverged: whether the loss or the metric is not finite. An accuracy then says nothing about learning.
    """

    value: float | None
    train_seconds: float
    examples: int
    diverged: bool


@dataclass(frozen=True)
class Reached:
    """The time and the examples that a run needed to reach a target.

    Attributes:
      is_limit: whether the two numbers are only upper limits. They are upper limits in two cases: the run's first score
        had already reached the target, or the previous score is too far from the first score that reached it. Too far
        means that the run trained on more than the share `LONGEST_GAP` of its examples between the two scores.
    """

    seconds: float
    examples: float
    is_limit: bool


@dataclass(frozen=True)
class Record:
    """The data of a finished run that a comparison uses. Shares and accuracies are from 0 to 1.

    Values that a mode does not record are None or empty.

    Attributes:
      best: the best value of the metric among the checkpoints whose loss is finite.
      idle_shares: worker index → the share of the training time in which this worker was neither computing nor slowed
        down on purpose. It is 1 for a worker without any accepted gradient. The mapping is empty if no worker has an
        accepted gradient.
    """

    root: Path
    config: RunConfig
    summary: Summary
    metric: Metric
    scores: tuple[ScoreInTime, ...]
    best: float | None
    examples: int
    idle_shares: Mapping[int, float]

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def straggler(self) -> str:
        return self.config.cluster.straggler

    @property
    def batch_per_worker(self) -> int:
        """The number of examples in one step of one worker."""
        return self.config.training.batch_size_per_worker

    @property
    def diverged(self) -> bool:
        """Whether the loss or the metric of the last scored checkpoint is not finite."""
        return self.scores[-1].diverged

    @property
    def limit_s(self) -> float | None:
        """The time limit in seconds if it ended the training, otherwise None."""
        ended_by = self.summary.early_stop
        return ended_by.max_seconds if isinstance(ended_by, TimeLimitReached) else None

    @property
    def final(self) -> float | None:
        """The metric at the end of the training; None if the run diverged.

        If a time limit ended the training, this is the metric at the limit, as returned by `after`, which may be None.
        The last checkpoint may come after the limit, because a run still finishes its current steps, which take longer
        with a slow worker. Without a time limit, it is the metric of the last scored checkpoint.
        """
        if self.diverged:
            return None
        return self.scores[-1].value if self.limit_s is None else self.after(self.limit_s)

    @property
    def track(self) -> list[tuple[ScoreInTime, float]]:
        """The scores with a finite metric, each with its value."""
        return [(score, score.value) for score in self.scores if score.value is not None]

    def after(self, seconds: float) -> float | None:
        """Return the metric after `seconds` of training, interpolated between two scores.

        Return None if the run diverged, if it trained for less than `seconds`, or if its first score came later. A run may
        end slightly before its limit, so `TIME_TOLERANCE` is allowed.
        """
        track = [] if self.diverged else self.track
        if not track or not track[0][0].train_seconds <= seconds <= (1 + TIME_TOLERANCE) * track[-1][0].train_seconds:
            return None
        return float(np.interp(seconds, [score.train_seconds for score, _ in track], [value for _, value in track]))

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.summary.train_seconds

    def reached(self, target: float | None) -> Reached | None:
        """Return the time and the number of examples after which the metric first reached `target`.

        Both are interpolated between the first score that reached the target and the previous score. If these scores
        are too far apart, or if there is no previous score, return upper limits (`Reached.is_limit`).

        Return None if the metric never reached the target, if there is no target, or if the run diverged.
        """
        if self.diverged or target is None:
            return None
        before: tuple[ScoreInTime, float] | None = None
        for score, value in self.track:
            if self.metric.reaches(value, target):
                if before is None or score.examples - before[0].examples > LONGEST_GAP * self.examples:
                    return Reached(score.train_seconds, float(score.examples), is_limit=True)
                start, low = before
                part = (target - low) / (value - low)
                return Reached(
                    start.train_seconds + part * (score.train_seconds - start.train_seconds),
                    start.examples + part * (score.examples - start.examples),
                    is_limit=False,
                )
            before = score, value
        return None


def limit_of(records: Sequence[Record]) -> float | None:
    """Return the time limit in seconds that ended all runs which did not diverge; None if there is no such limit."""
    limits = {record.limit_s for record in records if not record.diverged}
    return limits.pop() if len(limits) == 1 else None


def work_of(summary: Summary) -> dict[str, str | None]:
    """Return the data set, network and precision of a run, by name. A run can't be compared if one of them is None."""
    return {
        "dataset": summary.dataset,
        "dataset_kind": summary.dataset_kind,
        "model": summary.model,
        "precision": summary.precision,
    }


def read_record(run_root: Path) -> Record:
    """Return the record of a finished run.

    Raises:
      UserError: the directory is not a run, or the run is unfinished, was never scored, or has a file that can't be read.
    """
    run_dir = RunDir.open(run_root)
    config = load_config(run_dir.config)
    summary = _summary(run_root, run_dir)
    ledger = read_csv(run_dir.updates) if run_dir.updates.exists() else NO_ROWS
    metric = metric_of(summary.evaluation.history, Monitor.of(config.evaluation))
    scores = tuple(_score(run_dir, row, metric, summary.train_seconds) for row in summary.evaluation.history)
    examples = sum(worker.examples for worker in summary.workers) or scores[-1].examples
    if summary.train_seconds <= 0 or examples <= 0:
        raise UserError(
            f"'{run_dir.summary}': the run trained on {examples} examples in {summary.train_seconds} seconds, so there "
            "is nothing to compare"
        )
    if unknown := next((name for name, value in work_of(summary).items() if value is None), None):
        raise UserError(f"'{run_dir.summary}': {unknown} is missing, so the run can't be compared")
    busy = {worker: shares.busy for worker, shares in time_shares(ledger).items()}
    return Record(
        root=run_dir.root,
        config=config,
        summary=summary,
        metric=metric,
        scores=scores,
        best=metric.best(score.value for score in scores if score.value is not None and not score.diverged),
        examples=examples,
        idle_shares={w: 1 - busy.get(w, 0.0) for w in range(config.training_workers)} if busy else {},
    )


def _summary(run_root: Path, run_dir: RunDir) -> Summary:
    try:
        summary = read_json(run_dir.summary, Summary)
    except FileNotFoundError as error:
        raise UserError(f"run directory '{run_root}' holds no finished run: it has no summary.json") from error
    if summary.outcome not in ("completed", *BROKEN) and not summary.early_stop:
        raise UserError(f"run directory '{run_root}' holds no finished run: its outcome is '{summary.outcome}'")
    if not summary.evaluation.history:
        raise UserError(f"run directory '{run_root}' has no test score: none of its checkpoints was scored")
    return summary


def _score(run_dir: RunDir, row: ScoreRow, metric: Metric, train_seconds: float) -> ScoreInTime:
    if row.train_seconds is None or row.examples is None:
        raise UserError(f"'{run_dir.summary}': the score of step {row.step} has no train_seconds or no examples")
    value = metric.of(row)
    seconds = min(row.train_seconds, train_seconds)  # the last checkpoint is written a moment after the last update
    return ScoreInTime(value, seconds, row.examples, diverged=row.test_loss is None or value is None)
