"""Write summary.json: what a run did, read from its directory. No TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ps_cluster.config import RunConfig, changed, load_config
from ps_cluster.config.datasets import DATASETS
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import Json, read_json
from ps_cluster.files.json_rows import read_rows
from ps_cluster.files.writing import write_json
from ps_cluster.notices import Notify, ignore
from ps_cluster.report.guess import guess_of_run
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.proof import with_recomputed
from ps_cluster.runs.result_rows import (
    EarlyStop,
    EvaluationRow,
    EvaluationSummary,
    MeasuredMetric,
    NetworkSummary,
    Outcome,
    ProgressRow,
    ScoreRow,
    ServerSize,
    ServerSummary,
    SilenceRow,
    Summary,
    TrainingNumbers,
    TrainingResult,
    Updates,
    WorkerRow,
    WorkerSummary,
    with_work,
)
from ps_cluster.runs.rows import ClusterFile, DatasetPointer, Row, ScalingRow, TaskRow
from ps_cluster.runs.run_dir import RunDir

SCHEMA = 2  # in 1, train_seconds and examples_per_second restarted with each chief; startup_seconds was the last one's

MOST_EPOCHS_LISTED = 10_000  # of those without a score; `checkpoints.every_epochs` may ask for very many

UPDATES = tuple(Updates.model_fields)  # names

Restarts = Mapping[tuple[str, int], int]
"""(task type, index) → how often it was started again; a task that never was may be left out."""
Tasks = Mapping[tuple[str, int], TaskRow]
"""(task type, index) → its row of cluster.json, that of the newest process."""
Model = TypeVar("Model", bound=Row)


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """What the launcher knows of a run that has ended, and the files of the run do not tell.

    Attributes:
      wall_seconds: from the start of the command to now.
      began: monotonic seconds at the start of the command. life: of this start of the launcher, as in rows of progress.
        `wall_seconds`, `startup_seconds` and `session_train_seconds` cover it alone, `train_seconds` covers all.
      restarts: how often each task was started again. A task that never was may be left out.
      silences: worker processes that were ended because they did nothing (launch/silence.py).
      scaled: the changes of the number of workers, in this start of the launcher.
      usage: "cpu_seconds", "peak_memory_bytes" and "processes" of this start of the launcher (system/usage.py).
      machine: the machine of this start of the launcher (system/machine.py).
      network: "private", and "notice": the message if it is not private (system/private_network.py).
      early_stop: why the training was stopped early, if its patience has run out.
      leaders: how many led the training, one after the other, if tasks are started one by one; else None.
    """

    outcome: Outcome
    wall_seconds: float
    began: float
    life: str | None
    machine: Json
    restarts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    silences: Sequence[SilenceRow] = ()
    scaled: Sequence[ScalingRow] = ()
    usage: Json = field(default_factory=dict)
    network: Json = field(default_factory=dict)
    leaders: int | None = None
    early_stop: EarlyStop | None = None


def write_summary(run_dir: RunDir, ended: EndedRun, notify: Notify = ignore) -> Summary:
    """Write summary.json and return it.

    If the leader was killed before it left a result, the counts come from its last row of progress. Values that the row
    does not have are null.

    Args:
      notify: gets one line for each damaged file; the summary is written without it.
    """
    config = load_config(run_dir.config)
    story = _Story.of(run_dir, ended.life, notify)
    training = _training(run_dir, story, notify)
    proof = training.proof and with_recomputed(training.proof, run_dir, training.updates.applied, notify)
    training = training.model_copy(update={"proof": proof})
    cluster = _read(run_dir.cluster, ClusterFile, notify)
    tasks: Tasks = {(task.type, task.index): task for task in cluster.tasks} if cluster else {}
    pointer = _read(run_dir.dataset, DatasetPointer, notify) or DatasetPointer(directory=".")
    evaluation, guess = _evaluation(run_dir, config, notify), guess_of_run(run_dir.dataset)
    workers = _workers(training.workers, config.mode_kind.trainer_type, tasks, ended.restarts)
    summary = Summary(
        schema_=SCHEMA,
        outcome="failed" if proof and not proof.holds else ended.outcome,
        early_stop=ended.early_stop,
        mode=config.mode.name,
        trainer=config.mode_kind.trainer_type,
        staleness_method=config.staleness.method,
        simulate_workers=getattr(config.mode, "simulate_workers", None),
        straggler=config.cluster.straggler,
        dataset=config.data.dataset,
        dataset_kind=DATASETS[config.data.dataset].kind,
        unit=pointer.unit,
        guess=guess and guess.value,
        learned=guess and guess.is_beaten_by(evaluation),
        too_few_examples=guess.examples if guess and guess.is_too_uncertain_for(evaluation) else None,
        few_updates=_few_updates(run_dir, config),
        model=config.model.name,
        precision=config.model.precision,
        seed=config.training.seed,
        settings={key: one.value for key, one in changed(config).items()},
        workers=workers,
        worker_processes=len({p.pid for worker in workers for p in worker.processes if p.updates}),
        parameter_servers=_parameter_servers(training.parameter_servers, tasks, ended.restarts),
        restarts={
            f"{task_type}-{index}": count for (task_type, index), count in sorted(ended.restarts.items()) if count
        },
        silences=list(ended.silences),
        scaled=list(ended.scaled),
        wall_seconds=ended.wall_seconds,
        sessions=ended.leaders or len(story.lives | {ended.life}),
        leaders=ended.leaders,
        session_train_seconds=0.0 if story.before is None else max(0.0, training.train_seconds - story.before),
        startup_seconds=None if story.begun is None else story.begun - ended.began,
        machine=ended.machine,
        network=NetworkSummary(**ended.network),
        evaluation=evaluation,
        **{name: getattr(training, name) for name in TrainingNumbers.model_fields},
        **ended.usage,
    )
    return _write(run_dir, summary)


def refresh_evaluation(run_dir: RunDir, notify: Notify = ignore) -> Summary:
    """Add the newest scores to a summary.json that was written before them, and return it.

    Raises:
      UserError: the summary is damaged.
    """
    summary = read_json(run_dir.summary, Summary)
    evaluation, guess = _evaluation(run_dir, load_config(run_dir.config), notify), guess_of_run(run_dir.dataset)
    found: Json = {"evaluation": evaluation}
    if guess:
        few = guess.examples if guess.is_too_uncertain_for(evaluation) else None
        found |= {"learned": guess.is_beaten_by(evaluation), "too_few_examples": few}
    proof = summary.proof and with_recomputed(summary.proof, run_dir, summary.updates.applied, notify)
    found |= {"proof": proof} | ({"outcome": "failed"} if proof and not proof.holds else {})
    return _write(run_dir, summary.model_copy(update=found))


def _write(run_dir: RunDir, summary: Summary) -> Summary:
    content = {"schema": summary.schema_, "outcome": summary.outcome} | summary.model_dump(mode="json")  # these first
    write_json(run_dir.summary, content)
    return summary


@dataclass
class _Story:
    """Facts from all rows of progress together.

    Attributes:
      last: the newest row. rolled_back: updates that rows reported as applied and that a later start of the leader had
        lost. begun: monotonic seconds of the first update since this start of the launcher. lives: all starts of a
        launcher. before: seconds trained before this start; None where it wrote no row.
    """

    last: ProgressRow = field(default_factory=lambda: ProgressRow(phase="starting"))
    rolled_back: int = 0
    begun: float | None = None
    lives: set[str | None] = field(default_factory=set)
    before: float | None = None

    @classmethod
    def of(cls, run_dir: RunDir, life: str | None, notify: Notify) -> _Story:
        story = cls()
        for row in read_rows(run_dir.progress, ProgressRow, notify):
            story._hear(row, life)
        (story.last,) = with_work(run_dir.work, [story.last])
        return story

    def _hear(self, row: ProgressRow, life: str | None) -> None:
        self.rolled_back += max(0, self.last.applied - row.applied)
        self.last = row
        self.lives.add(row.life)
        if self.before is None and row.life == life:
            self.before = row.train_seconds
        if self.begun is None and row.life == life and row.times.resumed_update is not None:
            self.begun = row.monotonic - (row.times.seconds - row.times.resumed_update)


def _training(run_dir: RunDir, story: _Story, notify: Notify) -> TrainingResult:
    """Return the leader's result, unless newer rows of progress exist: then it is of an earlier part of the run."""
    result = _read(run_dir.training_result, TrainingResult, notify)
    row = story.last
    if result and row.applied <= result.updates.applied:
        training = result
    else:
        training = TrainingResult(
            outcome="stopped",
            train_seconds=row.train_seconds,
            goodput=row.times.goodput,
            rolled_back_seconds=row.times.rolled_back,
            interrupted_seconds=row.times.interrupted,
            updates=Updates(scheduled=row.scheduled, applied=row.applied),
            workers=row.workers,
        )
    # A leader that restarts from a checkpoint can't know how far the last one had come; the rows do.
    updates = training.updates.model_copy(update={"rolled_back": story.rolled_back})
    return training.model_copy(update={"updates": updates})


def _workers(rows: list[WorkerRow], task_type: str, tasks: Tasks, restarts: Restarts) -> list[WorkerSummary]:
    """Return one row per index: the work of all its processes, and the newest process's pid."""
    indices = {row.index for row in rows} | {
        index for (kind, index), task in tasks.items() if kind == task_type and task.pid
    }
    summaries = []
    for index in sorted(indices):
        mine, task = [row for row in rows if row.index == index], tasks.get((task_type, index))
        summaries.append(
            WorkerSummary(
                index=index,
                pid=task.pid if task and task.pid else mine[-1].pid,
                address=task.address if task else None,
                updates=sum(row.updates for row in mine),
                examples=sum(row.examples for row in mine),
                restarts=restarts.get((task_type, index), 0),
                processes=mine,
            )
        )
    return summaries


def _parameter_servers(rows: list[ServerSize], tasks: Tasks, restarts: Restarts) -> list[ServerSummary]:
    sizes = {row.index: row.model_dump(exclude={"index"}) for row in rows}
    servers = {index: task for (task_type, index), task in tasks.items() if task_type == "ps"}
    return [
        ServerSummary(
            index=index,
            pid=servers[index].pid if index in servers else None,
            address=servers[index].address if index in servers else None,
            restarts=restarts.get(("ps", index), 0),
            **sizes.get(index, {}),
        )
        for index in sorted(sizes.keys() | servers)
    ]


def _evaluation(run_dir: RunDir, config: RunConfig, notify: Notify) -> EvaluationSummary:
    """Return the scores in the order of steps, the newest of each step; nulls and an empty history without any."""
    rows = read_rows(run_dir.evaluation, EvaluationRow, notify)
    by_step = {row.step: ScoreRow(**{name: getattr(row, name) for name in ScoreRow.model_fields}) for row in rows}
    history = [by_step[step] for step in sorted(by_step)]
    if not history:
        return EvaluationSummary()
    last = history[-1]
    monitor = Monitor.of(config.evaluation)
    sound = [row for row in history if math.isfinite(monitor.merit(row))]
    best = max(sound, key=monitor.merit) if sound else EvaluationSummary()
    return EvaluationSummary(
        **{name: getattr(last, name) for name in MeasuredMetric.model_fields},
        augmented_test_accuracy=last.augmented_test_accuracy,
        best_test_accuracy=best.test_accuracy,
        best_test_error=best.test_error,
        best_validation_accuracy=best.validation_accuracy,
        best_validation_error=best.validation_error,
        best_step=best.step,
        best_chosen_on=last.deciding,
        monitor=monitor.metric(last),
        monitor_mode=monitor.mode_of(last),
        best_value=monitor.value(best) if sound else None,
        best_metrics=best.metrics,
        best_compiled=best.compiled,
        epochs_not_scored=_epochs_not_scored(run_dir, config, history),
        history=history,
    )


def _epochs_not_scored(run_dir: RunDir, config: RunConfig, history: Sequence[ScoreRow]) -> list[float]:
    """Return the epochs, before that of the last score, at which a score was asked for and there is none.

    The score of an epoch is that of a checkpoint between its end and the end of the next one.
    """
    every = config.checkpoints.every_epochs
    if every is None:
        return []
    dataset = _dataset(run_dir, config)
    if dataset is None:
        return []
    of_a_pass = config.examples_seen(dataset.train_examples)
    scored = {math.floor((row.examples or 0) / of_a_pass / every + 1e-9) for row in history}
    last = min(max(scored), MOST_EPOCHS_LISTED)
    return [number * every for number in range(1, last) if number not in scored]


def _few_updates(run_dir: RunDir, config: RunConfig) -> str | None:
    dataset = _dataset(run_dir, config)
    return None if dataset is None else config.few_updates(dataset.train_examples)


def _dataset(run_dir: RunDir, config: RunConfig) -> PackedDataset | None:
    """Return what the run trained on; None if the packed copy is not on this machine any more."""
    try:
        return load_pointed(run_dir.dataset).holding_out(config.evaluation.validation_examples)
    except (UserError, OSError):
        return None


def _read(path: Path, model: type[Model], notify: Notify) -> Model | None:
    try:
        return read_json(path, model)
    except FileNotFoundError:
        return None
    except UserError as error:
        notify(f"left out of the summary: {error}")
        return None
