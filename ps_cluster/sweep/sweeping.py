"""Run a sweep from its plan to its page."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.cluster.local_run import resolve_data
from ps_cluster.config import build_config
from ps_cluster.files import claims
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.fleet.fleet import Fleet
from ps_cluster.processes import environment, isolation, tensorboard_server
from ps_cluster.processes.stop_requests import StopRequests
from ps_cluster.reporting.progress import warn_of_generated
from ps_cluster.reporting.terminal import make_console, print_error, print_line
from ps_cluster.run.run_dir import TEMPORARY
from ps_cluster.sweep.sweep_plan import Sweep, SweepPlan, checked_space
from ps_cluster.sweep.sweep_report import TRIALS, print_sweep_result, write_sweep_report
from ps_cluster.sweep.sweep_run import SweepRun
from ps_cluster.sweep.sweep_view import SweepView
from ps_cluster.sweep.trial_book import TrialBook, check_installed

PLAN, JOURNAL, NOUN = "sweep.yaml", "trials.journal", "sweep"


def run_sweep(sweep: Sweep, output: Path, at_once: int, *, tensorboard: bool = False) -> int:
    """Train all trials that are not over yet, and write the results. Return the exit code.

    Args:
      output: the caller holds its lock (files/locks.py).
      tensorboard: show all trials in TensorBoard while they are trained, and tell the link.
    Raises:
      UserError: Optuna is missing, a setting does not fit, `output` holds something else, or there is no data.
    """
    check_installed()
    claims.check_unclaimed(output, PLAN, NOUN)
    # Errors are found before any file is written.
    space = checked_space(sweep)
    config = build_config(None, dict(sweep.settings))
    dataset = resolve_data(config.data, notify=print_line)
    warn_of_generated(dataset, print_line)
    plan = SweepPlan.on(dataset, sweep, space)
    # More trials, or more at once, are no other sweep.
    settings = dump_yaml(sweep.model_dump(mode="json", exclude={"trials"}))
    claims.claim(output, PLAN, f"# on {dataset.name} ({dataset.kind})\n{settings}", NOUN)
    isolation.announce(config.cluster.isolation, output, print_line)
    book = _book(plan, output)
    console = make_console()
    has_accuracy = OBJECTIVES[dataset.spec.objective].has_accuracy
    view = SweepView(console, list(plan.space.axes), is_accuracy=has_accuracy)
    beside = tensorboard_server.beside(tensorboard, output / TRIALS, output / "tensorboard.log", view.notice)
    with StopRequests() as requests, environment.temporary_files_in(output / TEMPORARY), beside:
        code = SweepRun(plan, book, Fleet(at_once, view.notice), output, view).run(requests)
    write_sweep_report(plan, book, output)
    print_sweep_result(plan, book, output, console)
    if code:
        print_error(f"stopped before all trials were over; the same command goes on: {output}")
        return code
    return 0 if book.best() is not None else _failed(output)


def _book(plan: SweepPlan, output: Path) -> TrialBook:
    smaller = not OBJECTIVES[plan.dataset.spec.objective].has_accuracy
    book = TrialBook(output / JOURNAL, plan.method, plan.space, seed=plan.sweep.seed, smaller_is_better=smaller)
    plan.method.prepare(book, plan.space)
    return book


def _failed(output: Path) -> int:
    print_error(f"no trial has completed: the logs are in {output / TRIALS}")
    return 1
