"""Run a sweep: train several trials at once, judge the scores, continue an interrupted sweep, and write the results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ps_cluster.config import build_config
from ps_cluster.errors import FAILED, UserError
from ps_cluster.files import claimed_folders
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.launch import memory
from ps_cluster.launch.config_completion import resolve_data
from ps_cluster.process_variables import temporary_files_in
from ps_cluster.report.run_state import warn_of_generated
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.runs.run_dir import TEMPORARY, RunDir
from ps_cluster.system import tensorboard_server
from ps_cluster.system.private_network import announce_isolation
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.tools.fleet import EndedJob, Fleet, Job, train_at_once
from ps_cluster.tools.sweep.methods import REDUCTION, SEARCH_METHODS, STAGES
from ps_cluster.tools.sweep.sweep_plan import Sweep, SweepPlan, checked_space, mode_of
from ps_cluster.tools.sweep.sweep_report import (
    JOURNAL,
    TRIALS_FOLDER,
    listed,
    print_sweep_result,
    score_text,
    write_sweep_report,
)
from ps_cluster.tools.sweep.trial_book import Trial, TrialBook, check_installed

PLAN, NOUN = "sweep.yaml", "sweep"


@dataclass
class Running:
    """A trial under way.

    Attributes:
      scores: reads the new rows of the trial's evaluation results.
      score: the score of the trial so far; None before its first score.
      rung: the stage of the training after which successive halving next decides whether to stop the trial early. None
        if no decision follows. If the trial has no score at this stage, this decision and all later ones are skipped.
    """

    trial: Trial
    job: Job
    scores: RowTail[EvaluationRow]
    score: float | None = None
    rung: int | None = 1
    is_pruned: bool = False


class SweepRun:
    """The training of all trials of a plan. The caller holds the lock of the sweep's folder."""

    def __init__(
        self, plan: SweepPlan, book: TrialBook, fleet: Fleet, output: Path,
        sleep: Callable[[float], None] = time.sleep,
    ):  # fmt: skip
        self._plan = plan
        self._book = book
        self._fleet = fleet
        self._output = output
        self._sleep = sleep
        self._waiting = [trial for trial in book.trials if trial.state == "running"]  # an earlier command began them
        self._running: dict[int, Running] = {}
        self._code = 0

    def run(self, requests: StopRequests) -> int:
        """Train until all trials are over, or until a stop is requested. Return the exit code."""
        code = train_at_once(
            self._fleet, requests, print_line,
            start_next=self._start_next, ended=self._end, poll=self._poll_all, sleep=self._sleep,
        )  # fmt: skip
        return code or self._code

    def _poll_all(self) -> None:
        for running in self._running.values():
            self._poll(running)

    def _start_next(self) -> bool:
        """Continue a trial of an earlier command, or start a new trial. Return False if no trial is left to start."""
        if self._waiting:
            self._start(self._waiting.pop(0))
        elif len(self._book.trials) < self._plan.count:
            self._start(self._book.draw())
        else:
            return False
        return True

    def _start(self, trial: Trial) -> None:
        root = self._output / TRIALS_FOLDER / f"{trial.number:04}"
        try:
            config = self._plan.config(trial.values)
        except UserError as error:  # values that fit one by one, but not together
            self._fail(trial, str(error))
            return
        job = Job(trial.number, f"trial {trial.number}", Path(os.path.realpath(root)), config)
        try:
            self._fleet.start(job)
        except UserError as error:  # an earlier process of the trial still runs, or its folder can't be read
            self._code = FAILED
            print_line(f"trial {trial.number} can't be started (run the same command again to retry it): {error}")
            return
        self._running[trial.number] = Running(trial, job, RowTail(RunDir(job.root).evaluation, EvaluationRow))
        print_line(f"trial {trial.number} begins: {listed(trial.values)}")

    def _poll(self, running: Running, *, has_ended: bool = False) -> None:
        """Read the new scores of a trial. Stop the trial early if the search method decides so after one of the scores.

        `has_ended`: whether the trial has ended, so that it is too late to stop it.
        """
        for row in running.scores.new_rows():
            if running.is_pruned:
                return
            running.score = self._plan.score(row, running.score)
            done = self._plan.done(running.job.config, row.examples or 0)
            stage = round(STAGES * done)
            if not self._plan.method.halves or running.score is None or running.rung is None or stage < running.rung:
                continue
            # Only scores of the same stage are compared, as those of a longer training are better.
            is_judged, following = stage == running.rung, running.rung * REDUCTION
            running.rung = following if is_judged and following < STAGES else None
            number = running.trial.number
            if is_judged and self._book.report(number, running.score, stage) and not has_ended:
                running.is_pruned = True
                self._book.pruned(number)  # at once, so that a sweep that continues after a crash does not train it
                self._fleet.ask_to_stop(running.job)

    def _end(self, ended: EndedJob) -> None:
        running = self._running.pop(ended.job.index)
        self._poll(running, has_ended=True)  # the scores that it wrote just before it ended
        trial, score = running.trial, running.score
        on_held_out = f"{score_text(self._plan, score)} on held-out examples"
        if running.is_pruned:
            print_line(f"trial {trial.number} was stopped early, {on_held_out}")
        elif ended.outcome == "stopped":
            print_line(f"trial {trial.number} was stopped; the same command continues it")
        elif ended.outcome == "completed" and score is not None:
            self._book.completed(trial.number, score)
            print_line(f"trial {trial.number} has completed, {on_held_out}")
        else:
            self._fail(trial, ended.why or "its last score on held-out examples is not finite")

    def _fail(self, trial: Trial, why: str) -> None:
        self._book.failed(trial.number, why)
        print_line(f"trial {trial.number} has failed: {why}")


def run_sweep(sweep: Sweep, output: Path, at_once: int, *, tensorboard: bool = False) -> int:
    """Train all trials that are not over yet, and write the results. Return the exit code.

    Args:
      output: the folder of the sweep; the caller holds its lock (files/locks.py).
      tensorboard: show all trials in TensorBoard while they are trained, and print the link.
    Raises:
      UserError: Optuna is missing, a setting is invalid, `output` has other files or another sweep, or there is no
        data.
    """
    check_installed()
    claimed_folders.check_unclaimed(output, PLAN, NOUN)
    # Errors are found before any file is written.
    space = checked_space(sweep)
    config = build_config(None, dict(sweep.settings))
    dataset = resolve_data(config.data, notify=print_line)
    warn_of_generated(dataset, print_line)
    plan = SweepPlan.on(dataset, sweep, space)
    # With more trials, or more at once, it is still the same sweep.
    settings = dump_yaml(sweep.model_dump(mode="json", exclude={"trials"}))
    claimed_folders.claim(output, PLAN, f"# on {dataset.name} ({dataset.kind})\n{settings}", NOUN)
    announce_isolation(config.cluster.isolation, output, print_line)
    print_line(mode_of(sweep.settings, sweep.vary, "trial"))
    book = TrialBook(output / JOURNAL, plan.method, space, seed=sweep.seed, smaller_is_better=plan.smaller_is_better)
    beside = tensorboard_server.tensorboard_if(
        tensorboard, output / TRIALS_FOLDER, output / "tensorboard.log", print_line
    )
    with StopRequests() as requests, temporary_files_in(output / TEMPORARY), beside:
        code = SweepRun(plan, book, Fleet(at_once, print_line), output).run(requests)
    write_sweep_report(plan, book, output)
    print_sweep_result(plan, book, output, make_console())
    if code:
        print_error(f"stopped before all trials were over; run the same command again to continue: {output}")
        return code
    if book.best() is None:
        print_error(f"no trial has completed: the logs are in {output / TRIALS_FOLDER}")
        return FAILED
    return 0


def preview(sweep: Sweep, at_once: int) -> Iterator[str]:
    """Yield lines that describe a sweep, without starting it.

    There is a line for each trial that is known in advance. Further lines tell the mode, the number and the expected
    memory of all trials.

    Raises:
      UserError: Optuna is missing, or a setting is invalid.
    """
    check_installed()
    space, method = checked_space(sweep), SEARCH_METHODS[sweep.method]
    count = method.count(space, sweep.trials)
    if method.learns:
        yield f"each trial of {method.name} depends on earlier scores, so the trials are not known in advance"
    else:
        with TemporaryDirectory() as folder:
            book = TrialBook(Path(folder) / "journal", method, space, seed=sweep.seed, smaller_is_better=False)
            for number in range(count):
                yield f"trial {number}: {listed(book.draw().values)}"
    yield mode_of(sweep.settings, sweep.vary, "trial")
    configs = (build_config(None, {**sweep.settings, **values}) for values in space.samples())
    expected = memory.expected(configs, min(at_once, count))
    yield f"trials: {count}, {at_once} at once, method {method.name}; memory expected: {expected}; nothing was started"
