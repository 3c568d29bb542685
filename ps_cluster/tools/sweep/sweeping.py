"""Run a sweep from its plan to its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from ps_cluster.config import build_config
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.files import locks
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.launch import topology
from ps_cluster.launch.local_run import resolve_data
from ps_cluster.report.progress import warn_of_generated
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.runs.run_dir import TEMPORARY
from ps_cluster.system import environment, isolation, tensorboard_server
from ps_cluster.system.environment import StopRequests
from ps_cluster.tools.fleet import Fleet
from ps_cluster.tools.sweep.methods import SEARCH_METHODS, Space, Values
from ps_cluster.tools.sweep.plan import Sweep, SweepPlan, TrialBook, check_installed, checked_space
from ps_cluster.tools.sweep.report import TRIALS_FOLDER, SweepView, listed, print_sweep_result, write_sweep_report
from ps_cluster.tools.sweep.sweep_run import SweepRun

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
    locks.check_unclaimed(output, PLAN, NOUN)
    # Errors are found before any file is written.
    space = checked_space(sweep)
    config = build_config(None, dict(sweep.settings))
    dataset = resolve_data(config.data, notify=print_line)
    warn_of_generated(dataset, print_line)
    plan = SweepPlan.on(dataset, sweep, space)
    # More trials, or more at once, are no other sweep.
    settings = dump_yaml(sweep.model_dump(mode="json", exclude={"trials"}))
    locks.claim(output, PLAN, f"# on {dataset.name} ({dataset.kind})\n{settings}", NOUN)
    isolation.announce(config.cluster.isolation, output, print_line)
    book = _book(plan, output)
    console = make_console()
    has_accuracy = OBJECTIVES[dataset.spec.objective].has_accuracy
    view = SweepView(console, list(plan.space.axes), is_accuracy=has_accuracy)
    beside = tensorboard_server.beside(tensorboard, output / TRIALS_FOLDER, output / "tensorboard.log", view.notice)
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
    print_error(f"no trial has completed: the logs are in {output / TRIALS_FOLDER}")
    return 1


# Tell which trials a sweep would train, without starting any.


def lines(sweep: Sweep, at_once: int) -> Iterator[str]:
    """Yield a line for each trial that can be known, then how many there are and what they take.

    Raises:
      UserError: Optuna is missing, or a setting does not fit.
    """
    check_installed()
    space, method = checked_space(sweep), SEARCH_METHODS[sweep.method]
    count = method.count(space, sweep.trials)
    if method.learns:
        yield f"the trials of {method.name} depend on the scores of those before: they can't be known"
    else:
        for number, values in enumerate(_drawn(sweep, space, count)):
            yield f"trial {number}: {listed(values)}"
    configs = (build_config(None, {**sweep.settings, **values}) for values in space.samples())
    expected = topology.expected(configs, min(at_once, count))
    yield f"trials: {count}, {at_once} at once, by {method.name}; memory expected: {expected}; nothing was started"


def _drawn(sweep: Sweep, space: Space, count: int) -> Iterator[Values]:
    """Yield the values of the trials as a new sweep draws them."""
    method = SEARCH_METHODS[sweep.method]
    with TemporaryDirectory() as folder:
        book = TrialBook(Path(folder) / "journal", method, space, seed=sweep.seed, smaller_is_better=False)
        method.prepare(book, space)
        for _ in range(count):
            yield book.draw().values
