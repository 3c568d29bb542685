"""Run the trials of a sweep: start as many as fit, judge their scores, and go on where an earlier command stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import RowTail
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.environment import StopRequests
from ps_cluster.tools.fleet import Ended, Fleet, Job, Stopping
from ps_cluster.tools.sweep.plan import SweepPlan, Trial, TrialBook
from ps_cluster.tools.sweep.report import TRIALS_FOLDER, SweepView

LOOK_EVERY_S = 0.5


@dataclass
class Running:
    """A trial under way: its job, and what was read of it so far.

    Attributes:
      trained: the share of its updates that are applied. done: the share of its examples at the last score.
    """

    trial: Trial
    job: Job
    scores: RowTail[EvaluationRow]
    progress: RowTail[ProgressRow]
    score: float | None = None
    trained: float = 0.0
    done: float = 0.0
    is_pruned: bool = False

    def look(self) -> None:
        """Read how far the training is."""
        for row in self.progress.new_rows():
            self.trained = row.applied / row.total if row.total else 0.0


class SweepRun:
    """Trains the trials of a plan. The caller holds the lock of `output`."""

    def __init__(
        self, plan: SweepPlan, book: TrialBook, fleet: Fleet, output: Path, view: SweepView,
        sleep: Callable[[float], None] = time.sleep,
    ):  # fmt: skip
        self._plan = plan
        self._book = book
        self._fleet = fleet
        self._output = output
        self._view = view
        self._sleep = sleep
        self._running: dict[int, Running] = {}
        self._metric = f"validation_{OBJECTIVES[plan.dataset.spec.objective].field}"

    def run(self, requests: StopRequests) -> int:
        """Train until all trials are over, or until a stop is requested. Return the exit code."""
        stopping = Stopping(self._fleet, requests, self._view.notice)
        waiting = self._book.begun
        try:
            while True:
                for ended in self._fleet.poll():
                    self._end(ended)
                for running in self._running.values():
                    self._look(running)
                while not stopping.begun and self._fleet.has_room and (trial := self._next(waiting)) is not None:
                    self._start(trial)
                self._view.show(self._book.ranked(), self._running, self._plan.count)
                if not self._running or stopping.is_over():
                    return stopping.exit_code
                self._sleep(LOOK_EVERY_S)
        finally:
            self._view.close()
            self._fleet.end_all()

    def _next(self, waiting: list[Trial]) -> Trial | None:
        if waiting:
            return waiting.pop(0)
        return self._book.draw() if len(self._book.trials) < self._plan.count else None

    def _start(self, trial: Trial) -> None:
        root = self._output / TRIALS_FOLDER / f"{trial.number:04}"
        try:
            job = Job(
                trial.number, f"trial {trial.number}", Path(os.path.realpath(root)), self._plan.config(trial.values)
            )
            self._fleet.start(job)
        except UserError as error:  # values that fit one by one, but not together
            self._book.failed(trial.number, str(error))
            self._view.ended(trial, "failed", str(error))
            return
        files = RunDir(job.root)
        scores, progress = RowTail(files.evaluation, EvaluationRow), RowTail(files.progress, ProgressRow)
        self._running[trial.number] = Running(trial, job, scores, progress)
        self._view.started(trial)

    def _look(self, running: Running) -> None:
        """Read how far a trial is and its new scores, and stop one that is not among the best at a rung."""
        running.look()
        for row in running.scores.new_rows():
            if running.is_pruned:
                return
            running.score = getattr(row, self._metric)
            running.done = self._plan.done(running.job.config, row.examples or 0)
            if self._plan.method.halves and running.score is not None and running.done < 1:
                self._judge(running, running.score)

    def _judge(self, running: Running, score: float) -> None:
        number = running.trial.number
        if self._book.report(number, score, self._plan.method.stage(running.done)):
            running.is_pruned = True
            self._book.pruned(number)  # at once: a sweep that goes on after a crash must not train it further
            self._fleet.ask_to_stop(running.job)

    def _end(self, ended: Ended) -> None:
        running = self._running.pop(ended.job.index)
        self._look(running)  # scores of its last moments
        trial, score = running.trial, running.score
        if running.is_pruned:
            self._view.ended(trial, "pruned", score=score)
        elif ended.outcome == "stopped":
            self._view.notice(f"trial {trial.number} is stopped; the same command goes on with it")
        elif ended.outcome == "completed" and score is not None:
            self._book.completed(trial.number, score)
            self._view.ended(trial, "completed", score=score)
        else:
            why = ended.why or "its last score on held-out examples is no finite number"
            self._book.failed(trial.number, why)
            self._view.ended(trial, "failed", why)
