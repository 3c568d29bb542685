"""Read the record of a finished run from its directory: every number that the comparison uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.config import RunConfig, load_config
from ps_cluster.config.cluster_settings import parse_stragglers
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.runs import result_rows
from ps_cluster.runs.ledger import NO_ROWS
from ps_cluster.runs.logs import phase_shares
from ps_cluster.runs.proof import read_csv
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.server.staleness import NONE as NO_METHOD
from ps_cluster.tools.compare.metrics import Metric, metric_of

_BUSY = ("computes", "slow on purpose")  # of phases.PHASES

Json = Mapping[str, Any]
Histogram = Mapping[int, int]


@dataclass(frozen=True)
class ScoreInTime:
    """One checkpoint, scored on the test examples. `value` of the run's metric, and `test_loss`: None if not finite."""

    value: float | None
    train_seconds: float
    examples: int
    test_loss: float | None

    @property
    def diverged(self) -> bool:
        """True if the loss or the metric is not finite. An accuracy then says nothing about learning."""
        return self.test_loss is None or self.value is None


@dataclass(frozen=True)
class StalenessOfRun:
    """Staleness of the applied updates, in versions; mean, p95 and max are None where it was not measured."""

    mean: float | None
    p95: int | None
    max: int | None


@dataclass(frozen=True)
class Reached:
    """Cost of reaching a target; an upper limit where the first score was as good already."""

    seconds: float
    examples: float
    at_first_score: bool


@dataclass(frozen=True)
class Record:
    """A finished run. Shares and accuracies in 0..1; what a mode does not record is None or empty.

    Attributes:
      unit: the word for several examples, e.g. "images".
      guess: the metric of an answer that does not look at the inputs; None if unknown.
      best: the best metric of a checkpoint whose loss is finite.
    """

    root: Path
    config: RunConfig
    arm: str
    dataset: str
    dataset_kind: str
    unit: str
    model: str
    precision: str
    metric: Metric
    guess: float | None
    scores: tuple[ScoreInTime, ...]
    best: float | None
    train_seconds: float
    examples: int
    staleness: StalenessOfRun
    staleness_per_worker: Mapping[int, Histogram]
    idle_shares: Mapping[int, float]
    updates_applied: int
    gradients_dropped: int
    replays_refused: int | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    machine: Json
    ledger: np.ndarray = field(repr=False)
    """A structured array [applied steps] of ledger.ROW; empty where the run kept none."""

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def straggler(self) -> str:
        return self.config.cluster.straggler

    @property
    def batch_per_worker(self) -> int:
        """Examples in one step of one worker."""
        return self.config.training.batch_size_per_worker

    @property
    def batch(self) -> int:
        """Examples per update."""
        return self.config.examples_per_update

    @property
    def diverged(self) -> bool:
        """True if the loss of the last scored checkpoint is not finite."""
        return self.scores[-1].diverged

    @property
    def final(self) -> float | None:
        """The metric of the last scored checkpoint; None for a run that diverged."""
        return None if self.diverged else self.scores[-1].value

    @property
    def shown(self) -> float | None:
        """The same as the number that is shown, e.g. in percent."""
        return None if self.final is None else self.metric.scale * self.final

    @property
    def track(self) -> list[tuple[ScoreInTime, float]]:
        """The scores that have a finite metric, with it."""
        return [(score, score.value) for score in self.scores if score.value is not None]

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.train_seconds

    def reached(self, target: float) -> Reached | None:
        """Return when the metric first reached `target`, interpolated between scores; None if it never did.

        For a run that diverged this is None.
        """
        if self.diverged:
            return None
        before: tuple[ScoreInTime, float] | None = None
        for score, value in self.track:
            if self.metric.reaches(value, target):
                return _between(before, (score, value), target)
            before = score, value
        return None


def _between(before: tuple[ScoreInTime, float] | None, after: tuple[ScoreInTime, float], target: float) -> Reached:
    """Return when a straight line between two scores is at the target; `before` is None for the first score."""
    end, reached = after
    if before is None:
        return Reached(end.train_seconds, float(end.examples), at_first_score=True)
    start, value = before
    part = (target - value) / (reached - value)
    return Reached(
        start.train_seconds + part * (end.train_seconds - start.train_seconds),
        start.examples + part * (end.examples - start.examples),
        at_first_score=False,
    )


def read_record(run_root: Path) -> Record:
    """Return the record of a finished run.

    Raises:
      UserError: the directory is no run, the run is unfinished or was never scored, or a file of it can't be read.
    """
    run_dir = RunDir.open(run_root)
    config = load_config(run_dir.config)
    summary = _summary(run_root, run_dir)
    ledger = read_csv(run_dir.updates) if run_dir.updates.exists() else NO_ROWS
    return _record(run_dir, config, summary, ledger)


def straggler_factor(text: str) -> float | None:
    """Return how much slower the slowest worker is: 1 for none, 5 for "2:5x"; None for any other kind of straggler."""
    stragglers = parse_stragglers(text)
    if stragglers.gamma or any(slow.extra_s for slow in stragglers.slow):
        return None
    return max((slow.factor for slow in stragglers.slow), default=1.0)


def _summary(run_root: Path, run_dir: RunDir) -> Summary:
    try:
        summary = read_json(run_dir.summary, Summary)
    except FileNotFoundError as error:
        raise UserError(f"run directory '{run_root}' holds no finished run: it has no summary.json") from error
    if summary.outcome not in ("completed", "diverged"):
        raise UserError(f"run directory '{run_root}' holds no finished run: its outcome is '{summary.outcome}'")
    if not summary.evaluation.history:
        raise UserError(f"run directory '{run_root}' has no test score: none of its checkpoints was scored")
    return summary


def _record(run_dir: RunDir, config: RunConfig, summary: Summary, ledger: np.ndarray) -> Record:
    metric = metric_of(summary.evaluation.history)
    history = tuple(_score(run_dir, score, metric) for score in summary.evaluation.history)
    seconds = summary.train_seconds
    examples = sum(worker.examples for worker in summary.workers) or history[-1].examples
    if seconds <= 0 or examples <= 0:
        raise UserError(f"'{run_dir.summary}': {examples} examples in {seconds} seconds: nothing to compare")

    def known(name: str, value: str | None) -> str:
        if value is None:
            raise UserError(f"'{run_dir.summary}': {name}: got none: it can't be compared")
        return value

    return Record(
        root=run_dir.root,
        config=config,
        arm=arm_label(config),
        dataset=known("dataset", summary.dataset),
        dataset_kind=known("dataset_kind", summary.dataset_kind),
        unit=summary.unit,
        model=known("model", summary.model),
        precision=known("precision", summary.precision),
        metric=metric,
        guess=summary.guess,
        scores=history,
        best=metric.best(score.value for score in history if score.value is not None and not score.diverged),
        train_seconds=seconds,
        examples=examples,
        staleness=StalenessOfRun(summary.staleness.mean, summary.staleness.p95, summary.staleness.max),
        staleness_per_worker=_staleness_per_worker(ledger),
        idle_shares=_idle_shares(ledger, config.training_workers),
        updates_applied=summary.updates.applied,
        gradients_dropped=summary.gradients.dropped or 0,
        replays_refused=summary.updates.replays_refused,
        cpu_seconds=summary.cpu_seconds,
        peak_memory_bytes=summary.peak_memory_bytes,
        machine=summary.machine or {},
        ledger=ledger,
    )


def _score(run_dir: RunDir, score: result_rows.ScoreRow, metric: Metric) -> ScoreInTime:
    if score.train_seconds is None or score.examples is None:
        raise UserError(f"'{run_dir.summary}': the score of step {score.step} has no train_seconds or no examples")
    return ScoreInTime(metric.of(score), score.train_seconds, score.examples, score.test_loss)


def arm_label(config: RunConfig) -> str:
    """Return a name for how the workers' updates come together, e.g. "async", "bounded lag=1", "async k=30 inverse"."""
    label, method = config.mode_kind.label(config), config.staleness.method
    return label if method == NO_METHOD.name else f"{label} {method}"


def _staleness_per_worker(ledger: np.ndarray) -> dict[int, Histogram]:
    histograms: dict[int, Histogram] = {}
    for worker in np.unique(ledger["worker"]):
        values, counts = np.unique(ledger["staleness"][ledger["worker"] == worker], return_counts=True)
        histograms[int(worker)] = {int(value): int(count) for value, count in zip(values, counts)}
    return histograms


def _idle_shares(ledger: np.ndarray, workers: int) -> dict[int, float]:
    """Return the share of training in which each worker was neither computing nor slow on purpose.

    1 for a worker without any accepted gradient; empty if no worker has one.
    """
    shares = phase_shares(ledger)
    busy = {worker: sum(by_phase[name] for name in _BUSY) for worker, by_phase in shares.items()}
    return {worker: 1 - busy.get(worker, 0.0) for worker in range(workers)} if busy else {}
