"""Define the rows of a training and its evaluation: progress, scores, the leader's result, and summary.json."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import ConfigDict, Field, JsonValue

from ps_cluster.config.datasets import MOST_CLASSES
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import number_text
from ps_cluster.runs.dataset_rows import Examples, Name
from ps_cluster.runs.machine_rows import MachineRow, NetworkSummary, ProcessUsage
from ps_cluster.runs.rows import (
    MOST,
    Count,
    Histogram,
    Index,
    Loss,
    Number,
    Pid,
    Row,
    ScalingRow,
    Seconds,
    Share,
    Text,
    Word,
)
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.runs.training_phases import Phase

STALENESS_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class StalenessBuckets(Row):
    """A histogram of the staleness of all steps so far.

    `counts`: for each of STALENESS_BOUNDS, the number of steps with a staleness up to this bound and above the bound
    before it; the last count is for steps above all bounds. `sum`: the sum of the staleness of all steps.
    """

    counts: list[Count]
    sum: Count

    @property
    def mean(self) -> float | None:
        """The mean staleness of all steps so far; None without a step."""
        steps = sum(self.counts)
        return self.sum / steps if steps else None


class WorkerRow(Row):
    """The work of one worker process. A restarted worker has a row for each of its processes."""

    index: Index
    pid: Pid
    updates: Count
    examples: Count = 0


class WorkFile(Row):
    """The file metrics/work.json: each worker's work up to the newest progress row. It is overwritten, not extended.

    `dispatches`: for each dispatch (steps that were handed to one worker) that is not completely applied, the pid of
    its worker; None if unknown.
    """

    workers: list[WorkerRow] = []
    dispatches: list[Pid | None] = []


class ProgressRow(WorkFile):
    """The progress of training, as the leader knows it. Means are over the updates since the previous row.

    Attributes:
      time, monotonic: unix seconds, and monotonic seconds that processes of this machine can compare.
      life: the unique id of the launcher's process; None for a task without a launcher.
      scheduled, applied, total: numbers of updates.
      written: the number of ledger rows that were processed after training, for the proof and the CSV files.
      loss, accuracy or error (an objective has one of the two), learning_rate, staleness_mean: None without an update, or
        if not finite.
      goodput: the goodput of the training so far (times.py).
      longest_wait_seconds: after this time without an update, training counts as standing still.
      workers, dispatches: written only to metrics/work.json, because rows of 1,000 workers would take 17 GB a day.
    """

    time: Number = 0.0
    monotonic: Number = 0.0
    life: Word | None = None
    phase: Phase
    applied: Count = 0
    scheduled: Count = 0
    total: Count | None = None
    examples: Count = 0
    examples_per_second: Seconds | None = None
    train_seconds: Number = 0.0
    times: TrainingTimes = TrainingTimes()
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

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the log line about this row, besides its step."""
        values = {
            "phase": self.phase,
            "total": self.total,
            "examples": self.examples,
            "examples_per_second": self.examples_per_second,
            "epoch": self.epoch,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "error": self.error,
            "staleness_mean": self.staleness_mean,
            "learning_rate": self.learning_rate,
        }
        return {name: value for name, value in values.items() if value is not None}

    def measured(self, measure: Measure) -> float | None:
        """Return accuracy, error or loss of the updates since the previous row; None if it is unknown or not finite."""
        values: dict[Measure, float | None] = {"accuracy": self.accuracy, "error": self.error, "loss": self.loss}
        return values[measure]


def with_work(work: Path, rows: Sequence[ProgressRow]) -> Sequence[ProgressRow]:
    """Return progress rows with `workers` and `dispatches` from metrics/work.json, the file `work`.

    `rows` must be the newest rows. They are returned unchanged if the file can't be read.
    """
    with contextlib.suppress(FileNotFoundError, UserError):
        newest = read_json(work, WorkFile) if rows else WorkFile()
        update = {"workers": newest.workers, "dispatches": newest.dispatches}
        return [row.model_copy(update=update) for row in rows]
    return rows


# The files that the evaluator writes: all scores, and the best score.

TrainingOutcome = Literal["completed", "stopped", "diverged", "nan_loss"]
"""The outcome of a training that did not fail."""

BROKEN: tuple[TrainingOutcome, ...] = ("diverged", "nan_loss")
"""The outcomes of a training that can't learn any more: a weight, or the loss of every step, is NaN or infinite."""


Split = Literal["test", "validation"]
"""The set of examples that a score is computed on: the test examples, or held-out training examples."""

Measure = Literal["accuracy", "error", "loss"]
"""The measures of a training: the loss and, depending on the objective, the accuracy or the error."""
MEASURES: tuple[Measure, ...] = get_args(Measure)

Better = Literal["max", "min"]
"""Which values of a metric are better: larger or smaller ones."""


class MetricText(NamedTuple):
    """A metric in words, e.g. "accuracy" and "91.20%"."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name} {self.value}"

    @classmethod
    def of(cls, name: str, value: float | None) -> MetricText:
        """Return the text of a metric's value, e.g. "accuracy 91.20%" or "auc 0.9312"."""
        if value is None:
            return cls(name, "not a finite number")
        return cls(name, f"{value:.2%}" if name == "accuracy" else number_text(value))


class MetricValues(Row):
    """The scores of a checkpoint over the test examples and, if there are some, held-out training examples (validation).

    Without a scored checkpoint, all values are None.

    Attributes:
      test_accuracy, test_error: the share of correct predictions, or the error in the target's units. One of the two
        is always None; both are None if the metric is not finite.
      test_loss: None if it is not finite.
      validation_accuracy, validation_error, validation_loss: None if no training examples are held out.
      metrics, validation_metrics: the objective's further metrics, by name (`auc`, `f1`, …), without metrics that are
        not finite.
      compiled, validation_compiled: the metrics with which the user's model was compiled.
    """

    step: Count | None = None
    test_accuracy: Share | None = None
    test_error: Loss | None = None
    test_loss: Loss | None = None
    validation_accuracy: Share | None = None
    validation_error: Loss | None = None
    validation_loss: Loss | None = None
    metrics: dict[Word, Loss] = {}
    validation_metrics: dict[Word, Loss] = {}
    compiled: dict[Word, Loss] = {}
    validation_compiled: dict[Word, Loss] = {}

    @property
    def deciding(self) -> Split:
        """The examples on which the best model is chosen: held-out training examples if any, else test examples."""
        known = (self.validation_accuracy, self.validation_error, self.validation_loss)
        return "test" if known == (None, None, None) else "validation"

    def value_of(self, metric: str, examples: Split) -> float | None:
        """Return the metric with this name over the examples of a split; None if it is unknown or not finite."""
        on_test = examples == "test"
        compiled = self.compiled if on_test else self.validation_compiled
        further = self.metrics if on_test else self.validation_metrics
        if metric in compiled:
            return compiled[metric]
        for measure in MEASURES:
            if metric == measure:
                return self.measured(measure, examples)
        return further.get(metric)

    def measured(self, measure: Measure, examples: Split) -> float | None:
        """Return accuracy, error or loss over the examples of a split; None if it is unknown or not finite."""
        on_test = examples == "test"
        values: dict[Measure, float | None] = {
            "accuracy": self.test_accuracy if on_test else self.validation_accuracy,
            "error": self.test_error if on_test else self.validation_error,
            "loss": self.test_loss if on_test else self.validation_loss,
        }
        return values[measure]

    @property
    def test(self) -> MetricText:
        """The accuracy or error over the test examples, in words."""
        return metric_text(self.test_accuracy, self.test_error) or MetricText.of("metric", None)

    @property
    def validation(self) -> MetricText | None:
        """The accuracy or error over held-out training examples, in words; None without such examples."""
        return metric_text(self.validation_accuracy, self.validation_error)

    @property
    def scores(self) -> list[str]:
        """All scores in words, e.g. "test accuracy 91.20%". The score that decides which model is best comes first."""
        held_out = [] if self.validation is None else [f"validation {self.validation}"]
        return [*held_out, f"test {self.test}"]


class CheckpointScores(MetricValues):
    """The scores of a checkpoint whose step is known."""

    step: Count


def named_values(values: Mapping[str, float]) -> list[str]:
    """Return the name and value of each metric as text, e.g. "auc 0.9312"."""
    return [f"{name} {number_text(value)}" for name, value in values.items()]


def metric_text(accuracy: float | None, error: float | None) -> MetricText | None:
    """Return "accuracy 91.20%" or "error 0.123", whichever is known; None if neither is."""
    if accuracy is not None:
        return MetricText.of("accuracy", accuracy)
    return None if error is None else MetricText.of("error", error)


class ScoreRow(CheckpointScores):
    """A scored checkpoint, as it is written to summary.json. Values that were not measured are None.

    `augmented_test_accuracy`: the accuracy of the mean prediction over several views of each example.
    """

    augmented_test_accuracy: Share | None = None
    train_seconds: Number | None = None
    examples: Count | None = None


class EvaluationRow(ScoreRow):
    """A row of metrics/evaluation.jsonl. `seconds`: the duration of the scoring."""

    time: Number = 0.0
    seconds: Seconds = 0.0
    best: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the log line about this score."""
        return self.model_dump(exclude={"time"}, exclude_none=True)


class CallbacksRow(Row):
    """A row of metrics/callbacks.jsonl. `step`: the last checkpoint that was passed to callbacks; 0 before the first."""

    step: Count


class PredictionsHeader(Row):
    """The header of metrics/predictions.safetensors: the predictions of one checkpoint for each test example.

    Attributes:
      unit: the plural noun for the examples, e.g. "images".
      classes: the names of the classes, by label; empty for an objective without classes.
      arrays: the names of the arrays in the file, as from `Head.kept`.
    """

    step: Count
    objective: Name
    unit: Word = "examples"
    examples: Examples
    classes: Annotated[list[Word], Field(max_length=MOST_CLASSES)] = []
    arrays: Annotated[list[Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]], Field(max_length=20)]


# metrics/training.json: the leader's result of the finished training.

Difference = Annotated[int, Field(ge=-MOST, le=MOST)]  # below 0 if more updates were applied than scheduled


class Updates(Row):
    """Counts of updates, as docs/glossary.md defines them; None if unknown."""

    scheduled: Count | None = None
    applied: Count = 0
    duplicated: Count | None = None
    lost: Difference | None = None
    rolled_back: Count | None = None
    replays_refused: Count | None = None
    mixed: Count | None = None


class TableTraffic(Row):
    """How many rows of embedding tables the applied updates pulled and pushed, and how many numbers these rows held."""

    rows: Count
    row_values: Count


class KeyedUse(Row):
    """The occupancy of the table of a `DynamicEmbedding`.

    Attributes:
      places: the number of rows that fit into the table.
      rows: the number of rows that the table holds.
      ended: the number of rows that were evicted because another key needed the space.
    """

    name: Word
    places: Count
    rows: Count
    ended: Count

    @property
    def line(self) -> str:
        return (
            f"'{self.name}': {self.rows:,} of {self.places:,} places in the table are used · {self.ended:,} rows "
            "evicted for lack of room"
        )


class Gradients(Row):
    """Counts of gradients; None if unknown.

    `dropped`: how many came too late. `per_update`: each update averages at least this many.
    """

    scheduled: Count | None = None
    applied: Count | None = None
    dropped: Count | None = None
    per_update: Count | None = None


class StalenessRow(Row):
    """Staleness of the applied gradients, in versions; None if not measured."""

    mean: Seconds | None = None
    p50: Count | None = None
    p95: Count | None = None
    max: Count | None = None
    histogram: Histogram = {}


class ShardProof(Row):
    """The numbers of a shard that the proof compares: its counters, and the rows and steps in its ledger.

    `rows`, `steps`: the number of rows, and of distinct steps among them. The other counts are those of
    `runs.ledger.Counts`.
    """

    index: Index
    rows: Count
    steps: Count
    version: Count
    accepted: Count
    refused: Count
    dropped: Count


class Recomputed(Row):
    """The results of computing some updates again, outside the cluster (`evaluation/recomputation.py`).

    Attributes:
      updates, of: the number of updates that were computed again, and the number of all applied updates.
      workers: for each worker, by its index, the number of recomputed updates in which it took part.
      largest_deviations: for each quantity, the largest deviation, as a multiple of its tolerance. Above 1 the proof
        fails.
      unchecked: one line for everything that could not be computed again, with the reason.
    """

    updates: Count = 0
    of: Count = 0
    workers: dict[Word, Count] = {}
    largest_deviations: dict[Word, Loss] = {}
    unchecked: list[Text] = []


class Proof(Row):
    """The result of the proof, which checks that each update was applied exactly once.

    `problems`: one line for each disagreement.
    """

    holds: bool
    problems: list[Text] = []
    shards: list[ShardProof] = []
    recomputed: Recomputed = Recomputed()

    @property
    def problem(self) -> str | None:
        """The first disagreement; None if there is none."""
        return None if self.holds else next(iter(self.problems), "no reason is given")


class ServerSize(Row):
    """The size and traffic of a parameter server: the number of its parameters, and the bytes of all pushes and pulls.

    `table_parameters`: how many of the parameters are in rows of embedding tables; None without tables.
    """

    index: Index
    parameters: Count | None = None
    table_parameters: Count | None = None
    pushed_bytes: Count | None = None
    pulled_bytes: Count | None = None


class TrainingNumbers(Row):
    """The numbers that describe a training. `tables`: None without embedding tables.

    `keyed`: the occupancy of dynamic embedding tables in the last checkpoint. `bad_losses`: the number of steps whose
    loss was NaN or infinite.
    """

    updates: Updates = Updates()
    tables: TableTraffic | None = None
    keyed: list[KeyedUse] = []
    gradients: Gradients = Gradients()
    proof: Proof | None = None
    staleness: StalenessRow = StalenessRow()
    examples_per_second: Seconds | None = None
    train_seconds: Number = 0.0
    goodput: Number | None = None
    rolled_back_seconds: Seconds = 0.0
    interrupted_seconds: Seconds = 0.0
    bad_losses: Count = 0


class TrainingResult(TrainingNumbers):
    """The leader's result of a training.

    The outcome is "completed" if all updates were applied, even if a stop was requested. It is "diverged" or "nan_loss"
    if the training could not learn any more (see `BROKEN`); such a training usually stops before its last update.
    """

    outcome: TrainingOutcome
    workers: list[WorkerRow] = []
    parameter_servers: list[ServerSize] = []


# summary.json: the results of a run.

Outcome = TrainingOutcome | Literal["failed"]


class WorkerSummary(WorkerRow):
    """The work of all processes of one worker. `pid` and `address` belong to the newest process."""

    address: Word | None = None
    restarts: Count = 0
    processes: list[WorkerRow] = []


class ServerSummary(ServerSize):
    """The size, traffic and newest process of a parameter server. Unknown values are None."""

    pid: Pid | None = None
    address: Word | None = None
    restarts: Count = 0


class SilenceRow(Row):
    """A worker process that the launcher ended because it had stopped working after some updates (launch/silence.py).

    `seconds`: how long the process had no update, while other workers had updates or waited for it.
    """

    worker: Index
    pid: Pid
    updates: Count
    seconds: Seconds


class PatienceExhausted(Row):
    """The reason for an early stop: the metric did not become better in `patience` scored checkpoints up to `step`."""

    step: Count
    patience: Count
    monitor: Word
    examples: Split
    best_step: Count | None = None
    best_value: Loss | None = None

    @property
    def line(self) -> str:
        best = "" if self.best_step is None else f"; the best value is that of step {self.best_step:,}"
        in_a_row = "1 scored checkpoint" if self.patience == 1 else f"{self.patience:,} scored checkpoints in a row"
        return f"{self.examples} {self.monitor} has not become better in {in_a_row} up to step {self.step:,}{best}"


class TimeLimitReached(Row):
    """The reason for an early stop: the run has trained for `max_seconds` seconds, which was its limit."""

    max_seconds: Seconds

    @property
    def line(self) -> str:
        return f"it has trained for {self.max_seconds:g} s (training.max_seconds)"


EarlyStop = PatienceExhausted | TimeLimitReached


class EvaluationSummary(MetricValues):
    """The last score, the best score, and all scores in the order of steps. Without scores, the values are None.

    Attributes:
      best_chosen_on: the examples on which the best checkpoint was chosen.
      monitor, monitor_mode, best_value: the metric by which the best checkpoint was chosen, whether a larger ("max") or a
        smaller value is better, and the best checkpoint's value.
      best_metrics, best_compiled: the best checkpoint's further metrics over the test examples.
      epochs_not_scored: with `checkpoints.every_epochs`, the epochs without a score, up to the last epoch with one.
    """

    augmented_test_accuracy: Share | None = None
    best_test_accuracy: Share | None = None
    best_test_error: Loss | None = None
    best_validation_accuracy: Share | None = None
    best_validation_error: Loss | None = None
    best_step: Count | None = None
    best_chosen_on: Split | None = None
    monitor: Word | None = None
    monitor_mode: Better | None = None
    best_value: Loss | None = None
    best_metrics: dict[Word, Loss] = {}
    best_compiled: dict[Word, Loss] = {}
    epochs_not_scored: list[Seconds] = []
    history: list[ScoreRow] = []


class Summary(TrainingNumbers):
    """The content of summary.json. Unknown fields are kept, because a later evaluation reads and rewrites the file.

    Attributes:
      guess: the test accuracy or error of a constant prediction; None if unknown.
      learned: whether the best score is better than `guess`; None if unknown.
      too_few_examples: the number of test examples if they are too few to decide `learned`; else None.
      few_updates: advice for a training with too few updates per epoch; None if it has enough.
      leaders: the number of successive leaders of a training on several machines; None on one machine.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True, serialize_by_alias=True)

    schema_: Count = Field(0, alias="schema")
    outcome: Outcome
    early_stop: EarlyStop | None = None
    mode: Name | None = None
    trainer: Word | None = None
    staleness_method: Name | None = None
    simulate_workers: Count | None = None
    straggler: Word | None = None
    dataset: Name | None = None
    dataset_kind: Word | None = None
    unit: Word = "examples"
    guess: Loss | None = None
    learned: bool | None = None
    too_few_examples: Count | None = None
    few_updates: Text | None = None
    model: Name | None = None
    precision: Word | None = None
    seed: Count | None = None
    settings: dict[Word, JsonValue] = {}
    workers: list[WorkerSummary] = []
    worker_processes: Count | None = None
    parameter_servers: list[ServerSummary] = []
    restarts: dict[Word, Count] = {}
    silences: list[SilenceRow] = []
    scaled: list[ScalingRow] = []
    sessions: Count = 1
    leaders: Count | None = None
    session_train_seconds: Seconds | None = None
    wall_seconds: Seconds | None = None
    startup_seconds: Number | None = None
    cpu_seconds: Seconds | None = None
    peak_memory_bytes: Count | None = None
    processes: list[ProcessUsage] = []
    machine: MachineRow | None = None
    network: NetworkSummary = NetworkSummary()
    evaluation: EvaluationSummary = EvaluationSummary()
