"""Write summary.json, which tells what a run did, from the files in its directory. Imports no TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ps_cluster.config import RunConfig, changed, load_config
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.tasks import PS, Task
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import Model, read_json
from ps_cluster.files.json_rows import read_rows
from ps_cluster.files.writing import write_json
from ps_cluster.notices import Notify, ignore
from ps_cluster.report.guess import guess_for
from ps_cluster.runs.dataset_rows import DatasetPointer
from ps_cluster.runs.machine_rows import MachineRow, NetworkSummary, UsageRow
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.proof import with_recomputed
from ps_cluster.runs.result_rows import (
    EarlyStop,
    EvaluationRow,
    EvaluationSummary,
    MetricValues,
    Outcome,
    ProgressRow,
    ScoreRow,
    ServerSize,
    ServerSummary,
    SilenceRow,
    StalenessRow,
    Summary,
    TrainingResult,
    Updates,
    WorkerRow,
    WorkerSummary,
    with_work,
)
from ps_cluster.runs.rows import ClusterFile, ScalingRow, TaskRow
from ps_cluster.runs.run_dir import RunDir

# In schema 1, train_seconds and examples_per_second were counted from 0 by each chief, and startup_seconds was that of
# the last chief.
SCHEMA = 2

# The last epoch that can be listed as not scored, because a small `checkpoints.every_epochs` asks for very many scores.
MOST_EPOCHS_LISTED = 10_000


Restarts = Mapping[Task, int]
"""The number of restarts of each task. A task without restarts may be missing."""
Tasks = Mapping[Task, TaskRow]
"""The row of each task in cluster.json. It describes the task's newest process."""


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """The facts about an ended run that only the launcher knows. All other facts are in the files of the run.

    In the summary, `wall_seconds`, `startup_seconds` and `session_train_seconds` count the last command only, and
    `train_seconds` counts all commands.

    Attributes:
      wall_seconds: the seconds since the start of the command.
      began: the start of the command, in monotonic seconds.
      life: the unique id of the launcher's process, as in progress rows; None for a task without a launcher.
      restarts: how often each task was started again. Tasks that were never started again may be missing.
      silences: the worker processes that the launcher ended because they had stopped working (launch/silence.py).
      scaled: the changes of the number of workers during this command.
      machine, usage: the machine, and the resources that the command used.
      network: whether other programs could reach the ports of the run.
      early_stop: why the training was stopped early; None if it was not.
      leaders: the number of successive leaders of the training, if its tasks are started separately, by the command
        `task`; else None.
    """

    outcome: Outcome
    wall_seconds: float
    began: float
    life: str | None
    machine: MachineRow
    restarts: Restarts = field(default_factory=dict)
    silences: Sequence[SilenceRow] = ()
    scaled: Sequence[ScalingRow] = ()
    usage: UsageRow = UsageRow()
    network: NetworkSummary = NetworkSummary()
    leaders: int | None = None
    early_stop: EarlyStop | None = None


def write_summary(run_dir: RunDir, ended: EndedRun, notify: Notify = ignore) -> Summary:
    """Write summary.json and return it.

    If the leader was killed before it wrote a result, the counts come from its last progress row. Values that the
    row does not have are null.

    Args:
      notify: gets one line for each damaged file. The summary is written without these files.
    """
    config = load_config(run_dir.config)
    totals = _ProgressTotals.of(run_dir, ended.life, notify)
    training = _training(run_dir, totals, notify)
    cluster = _read(run_dir.cluster, ClusterFile, notify)
    tasks: Tasks = {row.task: row for row in cluster.tasks} if cluster else {}
    pointer = _read(run_dir.dataset, DatasetPointer, notify) or DatasetPointer(directory=".")
    workers = _workers(training.workers, config.chosen_mode.trainer_type, tasks, ended.restarts)
    summary = Summary(
        schema_=SCHEMA,
        outcome=ended.outcome,
        early_stop=ended.early_stop,
        mode=config.mode.name,
        trainer=config.chosen_mode.trainer_type,
        staleness_method=config.staleness.method,
        simulate_workers=config.chosen_mode.simulated_workers(config),
        straggler=config.cluster.straggler,
        dataset=config.data.dataset,
        dataset_kind=DATASETS[config.data.dataset].kind,
        unit=pointer.unit,
        model=config.model.name,
        precision=config.model.precision,
        seed=config.training.seed,
        settings={key: one.value for key, one in changed(config).items()},
        workers=workers,
        worker_processes=len({p.pid for worker in workers for p in worker.processes if p.updates}),
        parameter_servers=_parameter_servers(training.parameter_servers, tasks, ended.restarts),
        restarts={str(task): count for task, count in sorted(ended.restarts.items()) if count},
        silences=list(ended.silences),
        scaled=list(ended.scaled),
        wall_seconds=ended.wall_seconds,
        sessions=ended.leaders or len(totals.lives | {ended.life}),
        leaders=ended.leaders,
        session_train_seconds=0.0 if totals.before is None else max(0.0, training.train_seconds - totals.before),
        startup_seconds=None if totals.begun is None else totals.begun - ended.began,
        machine=ended.machine,
        cpu_seconds=ended.usage.cpu_seconds,
        peak_memory_bytes=ended.usage.peak_memory_bytes,
        processes=ended.usage.processes,
        network=ended.network,
        updates=training.updates,
        tables=training.tables,
        keyed=training.keyed,
        gradients=training.gradients,
        proof=training.proof,
        staleness=training.staleness,
        examples_per_second=training.examples_per_second,
        train_seconds=training.train_seconds,
        goodput=training.goodput,
        rolled_back_seconds=training.rolled_back_seconds,
        interrupted_seconds=training.interrupted_seconds,
        bad_losses=training.bad_losses,
    )
    return _write(run_dir, _with_scores(summary, run_dir, config, notify))


def refresh_evaluation(run_dir: RunDir, notify: Notify = ignore) -> Summary:
    """Add the newest scores to a summary.json that was written before them, and return the summary.

    Raises:
      UserError: the summary is damaged.
    """
    summary, config = read_json(run_dir.summary, Summary), load_config(run_dir.config)
    return _write(run_dir, _with_scores(summary, run_dir, config, notify))


def _with_scores(summary: Summary, run_dir: RunDir, config: RunConfig, notify: Notify) -> Summary:
    """Return a copy of a summary with the newest scores, and with the newest results of updates computed again.

    These results become part of the proof, the check that each update was applied exactly once. All fields that depend
    on scores or proof are updated too.
    """
    dataset = _dataset(run_dir, config)
    evaluation = _evaluation(run_dir, config, dataset, notify)
    changes: dict[str, object] = {"evaluation": evaluation}
    if dataset:
        changes["few_updates"] = config.few_updates(dataset.train_examples)
    if guess := guess_for(dataset):
        too_few = guess.is_too_uncertain_for(evaluation)
        changes |= {"guess": guess.value, "learned": guess.is_beaten_by(evaluation)}
        changes["too_few_examples"] = guess.examples if too_few else None
    if summary.proof:
        proof = with_recomputed(summary.proof, run_dir, summary.updates.applied, notify)
        changes |= {"proof": proof} if proof.holds else {"proof": proof, "outcome": "failed"}
    return summary.model_copy(update=changes)


def _write(run_dir: RunDir, summary: Summary) -> Summary:
    first = {"schema": summary.schema_, "outcome": summary.outcome}
    content = first | summary.model_dump(mode="json")
    write_json(run_dir.summary, content)
    return summary


@dataclass
class _ProgressTotals:
    """Values that are computed from all progress rows.

    Attributes:
      last: the newest row.
      rolled_back: the number of updates that rows reported as applied, and that were lost later.
      begun: the time of the first update under the newest launcher, in monotonic seconds; None if there is none.
      lives: the ids of all launchers that the run has had.
      before: the seconds of training before the newest launcher; None if there is no row since it started.
    """

    last: ProgressRow = field(default_factory=lambda: ProgressRow(phase="starting"))
    rolled_back: int = 0
    begun: float | None = None
    lives: set[str | None] = field(default_factory=set)
    before: float | None = None

    @classmethod
    def of(cls, run_dir: RunDir, life: str | None, notify: Notify) -> _ProgressTotals:
        totals = cls()
        for row in read_rows(run_dir.progress, ProgressRow, notify):
            totals._add(row, life)
        (totals.last,) = with_work(run_dir.work, [totals.last])
        return totals

    def _add(self, row: ProgressRow, life: str | None) -> None:
        self.rolled_back += max(0, self.last.applied - row.applied)
        self.last = row
        self.lives.add(row.life)
        if self.before is None and row.life == life:
            self.before = row.train_seconds
        if self.begun is None and row.life == life and row.times.resumed_update is not None:
            self.begun = row.monotonic - (row.times.seconds - row.times.resumed_update)


def _training(run_dir: RunDir, totals: _ProgressTotals, notify: Notify) -> TrainingResult:
    """Return the leader's result. If a newer progress row exists, return the values of the newest row instead."""
    result = _read(run_dir.training_result, TrainingResult, notify)
    row = totals.last
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
            staleness=StalenessRow(mean=row.staleness.mean if row.staleness else None),
        )
    # A leader that restarts from a checkpoint can't know how far the last leader had come, but the rows show it.
    updates = training.updates.model_copy(update={"rolled_back": totals.rolled_back})
    return training.model_copy(update={"updates": updates})


def _workers(rows: list[WorkerRow], task_type: str, tasks: Tasks, restarts: Restarts) -> list[WorkerSummary]:
    """Return a row for each worker, with the work of all its processes and the pid of the newest one."""
    indices = {row.index for row in rows} | {row.index for row in tasks.values() if row.type == task_type and row.pid}
    summaries = []
    for index in sorted(indices):
        mine, task = [row for row in rows if row.index == index], tasks.get(Task(task_type, index))
        summaries.append(
            WorkerSummary(
                index=index,
                pid=task.pid if task and task.pid else mine[-1].pid,
                address=task.address if task else None,
                updates=sum(row.updates for row in mine),
                examples=sum(row.examples for row in mine),
                restarts=restarts.get(Task(task_type, index), 0),
                processes=mine,
            )
        )
    return summaries


def _parameter_servers(rows: list[ServerSize], tasks: Tasks, restarts: Restarts) -> list[ServerSummary]:
    sizes = {row.index: row.model_dump(exclude={"index"}) for row in rows}
    servers = {row.index: row for row in tasks.values() if row.type == PS}
    return [
        ServerSummary(
            index=index,
            pid=servers[index].pid if index in servers else None,
            address=servers[index].address if index in servers else None,
            restarts=restarts.get(Task(PS, index), 0),
            **sizes.get(index, {}),
        )
        for index in sorted(sizes.keys() | servers)
    ]


def _evaluation(run_dir: RunDir, config: RunConfig, dataset: PackedDataset | None, notify: Notify) -> EvaluationSummary:
    """Return the scores in the order of steps. If a step has several scores, only the newest counts.

    Without scores, all values are null.
    """
    rows = read_rows(run_dir.evaluation, EvaluationRow, notify)
    by_step = {row.step: ScoreRow.model_validate(row.model_dump()) for row in rows}
    history = [by_step[step] for step in sorted(by_step)]
    if not history:
        return EvaluationSummary()
    last = history[-1]
    monitor = Monitor.of(config.evaluation)
    sound = [row for row in history if math.isfinite(monitor.merit(row))]
    best: MetricValues = max(sound, key=monitor.merit) if sound else MetricValues()
    return EvaluationSummary(
        **last.model_dump(include=set(EvaluationSummary.model_fields)),
        best_test_accuracy=best.test_accuracy,
        best_test_error=best.test_error,
        best_validation_accuracy=best.validation_accuracy,
        best_validation_error=best.validation_error,
        best_step=best.step,
        best_chosen_on=last.deciding,
        monitor=monitor.metric(last),
        monitor_mode=monitor.better_of(last),
        best_value=monitor.value(best),
        best_metrics=best.metrics,
        best_compiled=best.compiled,
        epochs_not_scored=_epochs_not_scored(config, dataset, history) if dataset else [],
        history=history,
    )


def _epochs_not_scored(config: RunConfig, dataset: PackedDataset, history: Sequence[ScoreRow]) -> list[float]:
    """Return the epochs that lack a score although `checkpoints.every_epochs` asks for one, up to the last score.

    The score of an epoch is that of a checkpoint between the end of this epoch and the end of the next one.
    """
    every = config.checkpoints.every_epochs
    if every is None:
        return []
    of_a_pass = config.examples_seen(dataset.train_examples)
    scored = {math.floor((row.examples or 0) / of_a_pass / every + 1e-9) for row in history}
    last = min(max(scored), MOST_EPOCHS_LISTED)
    return [number * every for number in range(1, last) if number not in scored]


def _dataset(run_dir: RunDir, config: RunConfig) -> PackedDataset | None:
    """Return the data set that the run trained on; None if its packed copy is not on this machine any more."""
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
        notify(f"the summary lacks the contents of a file: {error}")
        return None
