"""Define the metrics of a run for Prometheus. Imports prometheus_client, and no TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain, repeat, zip_longest
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import Task
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.writing import write_whole
from ps_cluster.notices import Line, LogLine
from ps_cluster.report.progress import ProgressView
from ps_cluster.report.run_state import TaskState
from ps_cluster.runs import checkpoints
from ps_cluster.runs.result_rows import STALENESS_BOUNDS, EvaluationRow, ProgressRow, StalenessBuckets
from ps_cluster.runs.run_dir import RunDir


class Work(NamedTuple):
    """Counts of the work of a run. They only grow, even if the run goes back to a snapshot.

    Attributes:
      applied: the number of applied updates.
      examples: the number of training examples in these updates.
      dropped: the number of gradients that came too late.
      rolled_back: the number of updates that were applied and then lost.
    """

    applied: int = 0
    examples: int = 0
    dropped: int = 0
    rolled_back: int = 0

    def with_change(self, before: ProgressRow, now: ProgressRow) -> Work:
        """Return these numbers, increased by what was added between the rows `before` and `now`."""
        return Work(
            self.applied + _more(before.applied, now.applied),
            self.examples + _more(before.examples, now.examples),
            self.dropped + _more(before.dropped, now.dropped),
            self.rolled_back + _more(now.applied, before.applied),
        )


class StalenessCounts(NamedTuple):
    """Counts of steps by staleness, as in `StalenessBuckets`. They only grow.

    `counts` is empty until a progress row has counts of staleness. `sum`: the sum of the staleness of all steps.
    """

    counts: Sequence[int] = ()
    sum: int = 0

    def with_change(self, before: StalenessBuckets | None, now: StalenessBuckets | None) -> StalenessCounts:
        """Return these counts, increased by what was added between `before` and `now`."""
        if now is None:
            return self
        counts = zip_longest(self.counts, before.counts if before else (), now.counts, fillvalue=0)
        added = [total + _more(earlier, later) for total, earlier, later in counts]
        return StalenessCounts(added, self.sum + _more(before.sum if before else 0, now.sum))


@dataclass(frozen=True)
class Seen:
    """The state of a run as this process has seen it. Counters only grow: an update that is trained again counts again.

    Attributes:
      row: the newest progress row.
      score: the newest score.
      workers: the number of updates of each worker, by its index.
      pids: the pid of the newest process of each task.
      up: the tasks whose process is running.
      restarts: how often each task was started again.
      lines: the number of printed lines by the name and level of their event.
    """

    run_dir: RunDir | None = None
    row: ProgressRow | None = None
    score: EvaluationRow | None = None
    work: Work = Work()
    workers: Mapping[int, int] = field(default_factory=dict)
    staleness: StalenessCounts = StalenessCounts()
    pids: Mapping[Task, int] = field(default_factory=dict)
    up: frozenset[Task] = frozenset()
    restarts: Counter[Task] = field(default_factory=Counter)
    lines: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def with_row(self, row: ProgressRow) -> Seen:
        """Return a copy that includes another progress row. The first row adds nothing to the counts."""
        before = self.row or row
        earlier, now = _updates_of_workers(before), _updates_of_workers(row)
        workers = {index: self.workers.get(index, 0) + _more(earlier[index], now[index]) for index in now}
        return replace(
            self,
            row=row,
            work=self.work.with_change(before, row),
            workers={**self.workers, **workers},
            staleness=self.staleness.with_change(before.staleness, row.staleness),
        )

    def with_tasks(self, tasks: Sequence[TaskState]) -> Seen:
        """Return a copy that includes new states of all processes."""
        pids = {one.task: one.pid for one in tasks if one.pid is not None}
        again = Counter(task for task, pid in pids.items() if self.pids.get(task, pid) != pid)
        up = frozenset(one.task for one in tasks if one.state == "running")
        return replace(self, pids={**self.pids, **pids}, up=up, restarts=self.restarts + again)


def _updates_of_workers(row: ProgressRow) -> Counter[int]:
    updates: Counter[int] = Counter()
    for worker in row.workers:
        updates[worker.index] += worker.updates
    return updates


def _more(before: int, now: int) -> int:
    """Return what was added to a count; 0 if the count fell because the run went back to a snapshot."""
    return max(0, now - before)


Value = float | None | tuple[Sequence[tuple[str, float]], float]
"""A number; None if it is not known; for a histogram, its cumulative buckets and the sum of its values."""
Read = Callable[[Seen], Value | Mapping[tuple[str, ...], Value]]
"""A function that returns the value of a metric or, for a metric with labels, a mapping from label values to values."""


@dataclass(frozen=True)
class RunMetric:
    """The definition of a metric of a run.

    Attributes:
      name: the name with the unit, as Prometheus wants it.
      help_text: the text that Prometheus shows.
      read: the function that returns the value or, for a metric with labels, all values.
      labels: the names of the labels.
      kind: the class of prometheus_client for the type of the metric.
    """

    name: str
    help_text: str
    read: Read
    labels: tuple[str, ...] = ()
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily] = GaugeMetricFamily

    def family(self, seen: Seen) -> Metric:
        """Return the metric as prometheus_client exports it, with all values that are known."""
        family, found = self.kind(self.name, self.help_text, labels=self.labels), self.read(seen)
        for labels, value in (found if isinstance(found, Mapping) else {(): found}).items():
            if value is not None:
                family.add_metric(labels, *(value if isinstance(value, tuple) else (value,)))
        return family


def _staleness_buckets(seen: Seen) -> Value:
    bounds = [*(str(float(bound)) for bound in STALENESS_BOUNDS), "+Inf"]
    up_to = accumulate(chain(seen.staleness.counts, repeat(0)))
    return list(zip(bounds, up_to)), seen.staleness.sum


def _save_times(seen: Seen) -> Mapping[tuple[str, ...], Value]:
    folders = seen.run_dir.states if seen.run_dir else ()
    return {(folder.name,): checkpoints.saved_at(folder) for folder in folders}


def _of_tasks(read: Callable[[Seen, Task], float]) -> Read:
    return lambda seen: {(task.type, str(task.index)): read(seen, task) for task in seen.pids}


def _of_row(name: str, help_text: str, read: Callable[[ProgressRow], float | None]) -> RunMetric:
    return RunMetric(name, help_text, lambda seen: None if seen.row is None else read(seen.row))


def _of_score(name: str, help_text: str, read: Callable[[EvaluationRow], float | None]) -> RunMetric:
    return RunMetric(name, help_text, lambda seen: None if seen.score is None else read(seen.score))


_counter = partial(RunMetric, kind=CounterMetricFamily)
_TASK = ("type", "index")
METRICS: tuple[RunMetric, ...] = (
    _counter(
        "ps_cluster_updates", "Updates applied. An update that is trained again counts again",
        lambda seen: seen.work.applied,
    ),
    _counter(
        "ps_cluster_updates_rolled_back", "Updates that were lost, and are trained again",
        lambda seen: seen.work.rolled_back,
    ),
    _counter("ps_cluster_examples", "Training examples in the updates applied", lambda seen: seen.work.examples),
    _counter(
        "ps_cluster_gradients_dropped", "Gradients that came too late for their round",
        lambda seen: seen.work.dropped,
    ),
    _counter(
        "ps_cluster_worker_updates", "Steps applied, by worker",
        lambda seen: {(str(index),): updates for index, updates in seen.workers.items()}, ("worker",),
    ),
    RunMetric(
        "ps_cluster_staleness", "Staleness of each step applied, in versions of the parameters", _staleness_buckets,
        kind=HistogramMetricFamily,
    ),
    _of_row(
        "ps_cluster_step", "Updates of the run so far, without those that were rolled back",
        lambda row: row.applied,
    ),
    _of_row("ps_cluster_step_target", "Updates that the whole run will have", lambda row: row.total),
    _of_row(
        "ps_cluster_updates_outstanding", "Updates that are handed out and not applied yet",
        lambda row: row.scheduled - row.applied,
    ),
    _of_row(
        "ps_cluster_dispatches_open", "Dispatches (steps sent to a worker together) that are not done yet",
        lambda row: len(row.dispatches),
    ),
    _of_row(
        "ps_cluster_goodput_ratio", "Share of the training time that was neither rolled back nor interrupted",
        lambda row: row.goodput,
    ),
    _of_row("ps_cluster_training_seconds", "Seconds of training", lambda row: row.train_seconds),
    _of_row("ps_cluster_loss", "Mean training loss of the newest updates", lambda row: row.loss),
    _of_row("ps_cluster_accuracy_ratio", "Training accuracy of the newest updates", lambda row: row.accuracy),
    _of_row(
        "ps_cluster_error", "Training error of the newest updates, where the objective has one",
        lambda row: row.error,
    ),
    _of_row("ps_cluster_learning_rate", "Mean learning rate of the newest updates", lambda row: row.learning_rate),
    _of_score("ps_cluster_test_accuracy_ratio", "Test accuracy of the newest score", lambda score: score.test_accuracy),
    _of_score("ps_cluster_test_error", "Test error of the newest score", lambda score: score.test_error),
    _of_score(
        "ps_cluster_validation_accuracy_ratio", "Accuracy of the newest score on held-out training examples",
        lambda score: score.validation_accuracy,
    ),
    _of_score(
        "ps_cluster_validation_error", "Error of the newest score on held-out training examples",
        lambda score: score.validation_error,
    ),
    _of_score("ps_cluster_scored_step", "Step of the newest score", lambda score: score.step),
    RunMetric(
        "ps_cluster_phase", "Always 1. The label is the current phase of the leader",
        lambda seen: {(seen.row.phase,): 1.0} if seen.row else None, ("phase",),
    ),
    _of_row(
        "ps_cluster_progress_timestamp_seconds", "Time of the leader's newest sign of life",
        lambda row: row.time,
    ),
    RunMetric(
        "ps_cluster_saved_timestamp_seconds", "Time of the newest checkpoint or snapshot", _save_times, ("kind",)
    ),
    _of_row("ps_cluster_save_seconds", "Duration of the last save", lambda row: row.save_seconds),
    RunMetric(
        "ps_cluster_task_up", "1 while the task's process runs, 0 when it has ended",
        _of_tasks(lambda seen, task: float(task in seen.up)), _TASK,
    ),
    _counter(
        "ps_cluster_task_restarts", "How often the task was started again",
        _of_tasks(lambda seen, task: seen.restarts[task]), _TASK,
    ),
    _counter(
        "ps_cluster_log_lines", "Printed log lines, by the name and level of their event",
        lambda seen: seen.lines, ("event", "level"),
    ),
)  # fmt: skip


class RunMetrics(ProgressView, Collector):
    """A view that forwards a run's events to another view, and offers metrics to scrapes, which run in another thread.

    A scrape reads one immutable object, and the modification times of two files. So a scrape never waits for the run,
    and the run never waits for a scrape. The address of the metrics is shown as a notice, and a file in the run
    directory contains the address until the run ends.
    """

    def __init__(self, view: ProgressView, task: str):
        super().__init__(lambda: 0.0)
        self._view, self._task = view, task
        self._seen = Seen()
        self._link: Path | None = None
        self.url = ""

    def start(self, config: RunConfig, run_dir: RunDir, dataset: PackedDataset, predicts: str = "") -> None:
        self._view.start(config, run_dir, dataset, predicts)
        self._seen = replace(self._seen, run_dir=run_dir)
        self._link = run_dir.metrics_link(self._task)
        write_whole(self._link, f"{self.url}\n")
        self._view.notice(f"metrics: {self.url}")

    def notice(self, line: Line) -> None:
        self._view.notice(line)
        event = LogLine.of(line).event
        self._seen = replace(self._seen, lines=self._seen.lines + Counter({(event.name, event.level): 1}))

    def tasks(self, tasks: Sequence[TaskState]) -> None:
        self._view.tasks(tasks)
        self._seen = self._seen.with_tasks(tasks)

    def progress(self, row: ProgressRow) -> None:
        self._view.progress(row)
        self._seen = self._seen.with_row(row)

    def evaluation(self, row: EvaluationRow) -> None:
        self._view.evaluation(row)
        self._seen = replace(self._seen, score=row)

    def close(self) -> None:
        self._view.close()
        if self._link:
            self._link.unlink(missing_ok=True)

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        return (metric.family(seen) for metric in METRICS)
