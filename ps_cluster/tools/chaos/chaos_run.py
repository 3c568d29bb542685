"""Run `ps-cluster chaos`: a disturbed run, an undisturbed run of the same work, and their comparison.

The number of steps is known only after the last fault, and the final accuracy says little while the learning rate is
high. So the disturbed run has a constant rate until the last fault, is drained there after M steps, and continues with
a cool-down in which the rate falls. The undisturbed run has the same rate at every step: constant for M steps, then
falling. Both end after the same number of updates, computed from the same batches.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ps_cluster.config import load_config
from ps_cluster.data.packed import load_pointed
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.runs.proof import read_csv
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.environment import StopRequests
from ps_cluster.tools.chaos.hosted_run import HostedExperiment
from ps_cluster.tools.chaos.kind import ChaosFailed, Fault, FaultKind, allowed_here
from ps_cluster.tools.chaos.settings import ChaosSettings, constant_rate, with_cool_down
from ps_cluster.tools.chaos.training_run import Bounds, Injected, Interrupted, Runner, TrainingRun
from ps_cluster.tools.chaos.verdict import complaints, make_report, print_report


def run_chaos(
    settings: ChaosSettings,
    root: Path | None,
    *,
    faults: Sequence[Fault] | None = None,
    bounds: Bounds = Bounds(),
    notify: Callable[[str], None] = print_line,
    console: Console | None = None,
) -> int:
    """Return the exit code: 0 passed, 1 failed, 130 or 143 stopped by Ctrl-C or SIGTERM. Bad input: UserError.

    Args:
      root: folder of both runs and chaos.json; None makes a new folder under runs/.
      faults: replace those of the plan. Faults that the system does not allow are skipped.
    """
    settings.check()
    root = root or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-chaos"
    with locks.sole_use(root, "--run-dir:", notify):
        if not locks.is_empty(root):
            raise UserError(f"--run-dir: '{root}' is not empty: choose another")
        return _run_in(
            Path(os.path.realpath(root)), settings, faults=faults, bounds=bounds, notify=notify, console=console
        )


def _run_in(
    root: Path,
    settings: ChaosSettings,
    *,
    faults: Sequence[Fault] | None,
    bounds: Bounds,
    notify: Callable[[str], None],
    console: Console | None,
) -> int:
    with StopRequests() as requests:
        kind = HostedExperiment if settings.hosts else Experiment
        experiment = kind(settings, root, bounds, notify, lambda: requests.count > 0)
        try:
            problems = experiment.carry_out(faults)
        except ChaosFailed as failure:
            problems = [str(failure)]
        except Interrupted:
            problems = ["stopped before the end"]
    report = experiment.report(problems)
    write_json(root / "chaos.json", report)
    print_report(report, console or make_console())
    if report["problems"]:
        print_error(f"{report['problems'][0]} (see {root})")
    return requests.exit_code if requests.count else int(not report["passed"])


class Experiment:
    """The two runs and what is known of them so far, so that there is a report however chaos ends.

    Each part raises ChaosFailed or Interrupted, and leaves no process.
    """

    def __init__(
        self,
        settings: ChaosSettings,
        root: Path,
        bounds: Bounds,
        notify: Callable[[str], None],
        stop_requested: Callable[[], bool],
    ):
        self._settings = settings
        self._root = root
        self._bounds = bounds
        self._notify = notify
        self._stop_requested = stop_requested
        self._injected: list[Injected] = []
        self._began = time.monotonic()
        self._seconds, self._disturbed_seconds = 0.0, 0.0
        self._tools = root / "faults"
        self._skipped: dict[str, str] = {}
        self._resumes = 0
        self._restarts: dict[str, int] | None = None
        self._schedule: dict[str, Any] = {}
        self._disturbed: dict[str, Any] | None = None
        self._undisturbed: dict[str, Any] | None = None
        self._test_examples: int | None = None
        self._left: list[str] = []

    def carry_out(self, faults: Sequence[Fault] | None) -> list[str]:
        """Do all of it; return the problems. `faults`: those of the plan where None."""
        self.disturb(faults)
        self.cool_down()
        self.compare()
        return self.complaints()

    def disturb(self, faults: Sequence[Fault] | None) -> None:
        """Inject the faults, or those of the plan, and drain the run. That fixes the number of steps."""
        settings, self._began = self._settings, time.monotonic()
        what = f"{settings.faults} faults" if settings.minutes is None else f"faults for {settings.minutes:g} min"
        self._notify(f"disturbed run: {what}, seed {settings.seed}; files in {self._root}")
        until = None if settings.minutes is None else self._began + 60 * settings.minutes
        options = settings.run_options(constant_rate(settings.most_steps()))
        kinds = settings.wanted() if faults is None else dict.fromkeys(fault.kind for fault in faults)
        with self._training("disturbed", options, environment=self._environment(kinds)) as (run, runner):
            self._injected = runner.injected
            try:
                runner.wait_for_training()
                allowed, self._skipped = allowed_here(kinds, run, self._notify)
                given = None if faults is None else [fault for fault in faults if fault.kind in allowed]
                runner.disturb(settings.plan(allowed) if given is None else given, until)
                runner.drain()
            finally:
                self._seconds = time.monotonic() - self._began
            summary = run.summary()
        self._restarts = dict(run.restarts + Counter(summary["restarts"]))
        self._resumes = run.resumes
        self._schedule = with_cool_down(summary["updates"]["applied"], settings.least_cool_down)

    def _environment(self, kinds: Iterable[FaultKind]) -> dict[str, str]:
        self._tools.mkdir()
        return {name: value for kind in kinds for name, value in kind.environment(self._tools).items()}

    def cool_down(self) -> None:
        """Train the disturbed run to its end without faults."""
        self._notify(f"it goes on to step {self._total:,} with a falling learning rate")
        config = RunDir(self._root / "disturbed").config
        write_whole(config, load_config(config).with_values(self._schedule).to_yaml())
        self._disturbed = self._to_the_end("disturbed", None)
        self._disturbed_seconds = time.monotonic() - self._began

    def compare(self) -> None:
        """Train the undisturbed run."""
        self._notify(f"undisturbed run: the same {self._total:,} steps")
        self._undisturbed = self._to_the_end("undisturbed", self._settings.run_options(self._schedule))

    def complaints(self) -> list[str]:
        """Return the problems of the disturbed run after all runs have ended."""
        run_dir = RunDir(self._root / "disturbed")
        self._test_examples = load_pointed(run_dir.dataset).test_examples
        step_ids = read_csv(run_dir.updates)["step"].astype(int).tolist()
        disturbed, undisturbed, took = self._disturbed, self._undisturbed, self._disturbed_seconds
        if disturbed is None or undisturbed is None:
            raise ChaosFailed("not both runs have ended")
        return complaints(disturbed, undisturbed, self._total, step_ids, self._test_examples, took)

    def report(self, problems: Sequence[str]) -> dict[str, Any]:
        """Return the content of chaos.json."""
        return make_report(
            settings=asdict(self._settings),
            injected=self._injected,
            seconds=self._seconds,
            skipped=self._skipped,
            resumes=self._resumes,
            restarts=self._restarts,
            leader=str(self._settings.topology.leader),
            disturbed=self._disturbed,
            undisturbed=self._undisturbed,
            test_examples=self._test_examples,
            problems=[*problems, *(f"left behind: {process}" for process in self._left)],
        )

    @property
    def _total(self) -> int:
        total: int = self._schedule["training.steps"]
        return total

    def _to_the_end(self, name: str, options: Sequence[str] | None) -> dict[str, Any]:
        with self._training(name, options) as (run, runner):
            runner.wait_for_end(self._bounds.end_s + 3 * self._seconds)
            return run.summary()

    @contextmanager
    def _training(
        self, name: str, options: Sequence[str] | None, environment: Mapping[str, str] | None = None
    ) -> Iterator[tuple[TrainingRun, Runner]]:
        output = self._root / f"{name}.out"
        run = TrainingRun(self._root / name, output, options, tools=self._tools, environment=environment)
        stop, notify = self._stop_requested, self._notify
        try:
            yield run, Runner(run, bounds=self._bounds, stop_requested=stop, notify=notify)
        finally:
            run.stop()
            self._left += run.left_behind()
