"""The metrics of a run for Prometheus: what each reads, and their server. Needs prometheus_client; no TensorFlow."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import Task
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.report.progress import ProgressView, Row
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import Line, LogLine
from ps_cluster.runs.result_rows import STALENESS_BOUNDS, EvaluationRow
from ps_cluster.runs.run_dir import RunDir

Counts = Mapping[Hashable, float]
# Label values and value; of a histogram its buckets and sum. A value None: no sample.
Samples = Iterable[tuple[Any, ...]]


@dataclass(frozen=True)
class Seen:
    """The sums over a run since this process began. Counters only grow: a step that is trained again counts again.

    Attributes:
      row: the newest row of progress. done: by name, and by ("worker", index), what was done so far.
      staleness: steps by the index of their bound, one more for those above; the sum under "sum".
      pids: the newest process of each task. up: those that run.
    """

    run_dir: RunDir | None = None
    row: Row | None = None
    score: EvaluationRow | None = None
    done: Counts = field(default_factory=Counter)
    staleness: Counts = field(default_factory=Counter)
    pids: Mapping[Task, int] = field(default_factory=dict)
    up: frozenset[Task] = frozenset()
    restarts: Counts = field(default_factory=Counter)
    lines: Counts = field(default_factory=Counter)

    def with_row(self, row: Row) -> Seen:
        """Return what was seen with a row added. The first row is where counting begins."""
        before = self.row or row
        rolled_back = max(0, before["applied"] - row["applied"])
        done = _more(self.done, _work(before), _work(row)) + Counter({"rolled_back": rolled_back})
        return replace(self, row=row, done=done, staleness=_more(self.staleness, _staleness(before), _staleness(row)))

    def with_tasks(self, tasks: list[Row]) -> Seen:
        """Return what was seen with the state of all processes, as `ProgressView.tasks` gets it."""
        pids = {Task(row["type"], row["index"]): row["pid"] for row in tasks}
        again = [task for task, pid in pids.items() if self.pids.get(task, pid) != pid]
        up = frozenset(Task(row["type"], row["index"]) for row in tasks if row["state"] == "running")
        return replace(self, pids={**self.pids, **pids}, up=up, restarts=Counter(self.restarts) + Counter(again))


def _work(row: Row) -> Counts:
    work: Counter[Hashable] = Counter({name: row[name] for name in ("applied", "examples", "dropped")})
    for worker in row["workers"]:
        work["worker", worker["index"]] += worker["updates"]
    return work


def _staleness(row: Row) -> Counts:
    told = row["staleness"]
    return {**dict(enumerate(told["counts"])), "sum": told["sum"]} if told else {}


def _more(total: Counts, before: Counts, now: Counts) -> Counter[Hashable]:
    """Return `total` and what came between two looks. A count that fell is one that went back to a snapshot."""
    more = {name: value - before.get(name, 0) for name, value in now.items()}
    return Counter(total) + Counter({name: value for name, value in more.items() if value > 0})


@dataclass(frozen=True)
class RunMetric:
    """A metric: its name and unit as Prometheus wants them, its help text, and its samples."""

    name: str
    says: str
    read: Callable[[Seen], Samples]
    labels: tuple[str, ...] = ()
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily] = GaugeMetricFamily

    def family(self, seen: Seen) -> Metric:
        """Return the metric with its samples."""
        family = self.kind(self.name, self.says, labels=self.labels)
        for labels, *values in self.read(seen):
            if None not in values:
                family.add_metric(labels, *values)
        return family


def _done(name: str) -> Callable[[Seen], Samples]:
    return lambda seen: [((), seen.done.get(name, 0))]


def _of_row(name: str) -> Callable[[Seen], Samples]:
    return lambda seen: [((), seen.row[name] if seen.row else None)]


def _of_score(name: str) -> Callable[[Seen], Samples]:
    return lambda seen: [((), getattr(seen.score, name, None))]


def _outstanding(seen: Seen) -> Samples:
    yield (), seen.row["scheduled"] - seen.row["applied"] if seen.row else None


def _open(seen: Seen) -> Samples:
    yield (), len(seen.row["dispatches"]) if seen.row else None


def _phase(seen: Seen) -> Samples:
    if seen.row:
        yield (seen.row["phase"],), 1


def _staleness_buckets(seen: Seen) -> Samples:
    bounds = [*(str(float(bound)) for bound in STALENESS_BOUNDS), "+Inf"]
    up_to = accumulate(seen.staleness.get(index, 0) for index in range(len(bounds)))
    yield (), list(zip(bounds, up_to)), seen.staleness.get("sum", 0.0)


def _saved(seen: Seen) -> Samples:
    for folder in seen.run_dir.states if seen.run_dir else ():
        yield (folder.name,), checkpoints.saved_at(folder)


def _of_workers(seen: Seen) -> Samples:
    for key, updates in seen.done.items():
        if isinstance(key, tuple):
            yield (str(key[1]),), updates


def _up(seen: Seen) -> Samples:
    return [((task.type, str(task.index)), float(task in seen.up)) for task in seen.pids]


def _restarts(seen: Seen) -> Samples:
    return [((task.type, str(task.index)), seen.restarts.get(task, 0)) for task in seen.pids]


def _lines(seen: Seen) -> Samples:
    return [(key, count) for key, count in seen.lines.items() if isinstance(key, tuple)]


_counter = partial(RunMetric, kind=CounterMetricFamily)
_histogram = partial(RunMetric, kind=HistogramMetricFamily)
_TASK = ("type", "index")
METRICS: tuple[RunMetric, ...] = (
    _counter("ps_cluster_updates", "Updates applied; one that is trained again counts again", _done("applied")),
    _counter("ps_cluster_updates_rolled_back", "Updates that were lost, and are trained again", _done("rolled_back")),
    _counter("ps_cluster_examples", "Training examples in the updates applied", _done("examples")),
    _counter("ps_cluster_gradients_dropped", "Gradients that came too late for their round", _done("dropped")),
    _counter("ps_cluster_worker_updates", "Steps applied of each worker", _of_workers, ("worker",)),
    _histogram("ps_cluster_staleness", "Staleness of each step applied, in versions of the parameters", _staleness_buckets),
    RunMetric("ps_cluster_step", "Updates of the run that stand", _of_row("applied")),
    RunMetric("ps_cluster_step_target", "Updates of the whole run", _of_row("total")),
    RunMetric("ps_cluster_updates_outstanding", "Updates that are handed out and not applied yet", _outstanding),
    RunMetric("ps_cluster_dispatches_open", "Dispatches that are not done yet", _open),
    RunMetric("ps_cluster_goodput_ratio", "Share of the time that was not rolled back or interrupted", _of_row("goodput")),
    RunMetric("ps_cluster_training_seconds", "Seconds of training", _of_row("train_seconds")),
    RunMetric("ps_cluster_loss", "Mean training loss of the newest updates", _of_row("loss")),
    RunMetric("ps_cluster_accuracy_ratio", "Training accuracy of the newest updates", _of_row("accuracy")),
    RunMetric("ps_cluster_error", "Training error of the newest updates, where the objective has one", _of_row("error")),
    RunMetric("ps_cluster_learning_rate", "Mean learning rate of the newest updates", _of_row("learning_rate")),
    RunMetric("ps_cluster_test_accuracy_ratio", "Test accuracy of the newest score", _of_score("test_accuracy")),
    RunMetric("ps_cluster_test_error", "Test error of the newest score", _of_score("test_error")),
    RunMetric(
        "ps_cluster_validation_accuracy_ratio",
        "Accuracy of the newest score on held-out training examples",
        _of_score("validation_accuracy"),
    ),
    RunMetric(
        "ps_cluster_validation_error",
        "Error of the newest score on held-out training examples",
        _of_score("validation_error"),
    ),
    RunMetric("ps_cluster_scored_step", "Step of the newest score", _of_score("step")),
    RunMetric("ps_cluster_phase", "1 for the phase that the leader is in", _phase, ("phase",)),
    RunMetric("ps_cluster_progress_timestamp_seconds", "Time of the leader's newest sign of life", _of_row("time")),
    RunMetric("ps_cluster_saved_timestamp_seconds", "Time of the newest checkpoint or snapshot", _saved, ("kind",)),
    RunMetric("ps_cluster_save_seconds", "Duration of the last save", _of_row("save_seconds")),
    RunMetric("ps_cluster_task_up", "1 while the task's process runs, 0 when it has ended", _up, _TASK),
    _counter("ps_cluster_task_restarts", "How often the task was started again", _restarts, _TASK),
    _counter("ps_cluster_log_lines", "Lines printed, by their event", _lines, ("event", "level")),
)  # fmt: skip


class RunMetrics(ProgressView, Collector):
    """Passes the events of a run on to a view, and gives them to whoever scrapes, in another thread.

    A scrape reads one immutable object, and the times of two files. It never waits for the run, nor the run for it.
    It tells where the metrics are when the run has its directory: in a line, and in a file as long as it is true.
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
        told = Counter({(event.name, event.level): 1})
        self._seen = replace(self._seen, lines=Counter(self._seen.lines) + told)

    def tasks(self, tasks: list[Row]) -> None:
        self._view.tasks(tasks)
        self._seen = self._seen.with_tasks(tasks)

    def progress(self, row: Row) -> None:
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


# Serve the metrics of a run over HTTP, beside its view.


@contextlib.contextmanager
def serving(host: str, port: int, metrics: RunMetrics) -> Iterator[None]:
    """Serve metrics within the block. Raises UserError where nothing can listen there."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    ProcessCollector(registry=registry)  # start time, processor time and memory of this process
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise UserError(
            f"--metrics-port: got {port}: nothing can listen at '{host}' there ({error.strerror}): take another, or 0 for any"
        ) from error
    # Errors of a reader that went away would be printed among the run's lines.
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    metrics.url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
