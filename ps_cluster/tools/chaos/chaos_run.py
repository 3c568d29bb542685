"""Run `ps-cluster chaos`: inject faults into a run (the disturbed run), and check that nothing was lost.

A disturbed run on this machine is compared with undisturbed runs of the same work: the same number of updates, computed
from the same batches, with the same learning rate at each step. The disturbed run trains with a constant learning rate
until it has recovered from the last fault, and is then stopped. It is resumed with a falling learning rate (the
cool-down), because the accuracy says little while the rate is high. The rate can't fall earlier, because the number of
steps is not known before the last fault. Equal asynchronous runs end with different accuracies, so several undisturbed
runs are needed to judge the accuracy. A run on several hosts is not compared with undisturbed runs: only its own
results are checked.
"""

from __future__ import annotations

import os
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ps_cluster.config import load_config
from ps_cluster.data.packed import load_pointed
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.runs.ledger_csv import read_csv
from ps_cluster.runs.result_rows import Summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.tools.chaos.chaos_report import SCHEMA, ChaosReport, Evidence, HostedFacts, make_report, print_report
from ps_cluster.tools.chaos.hosted_run import HostedRun, assign_hosts
from ps_cluster.tools.chaos.hosts import hosts
from ps_cluster.tools.chaos.kind import ChaosFailed, Fault, FaultKind, Run
from ps_cluster.tools.chaos.launched_run import LaunchedRun
from ps_cluster.tools.chaos.namespaces import NotAllowed
from ps_cluster.tools.chaos.runner import ChaosBounds, Interrupted, Runner
from ps_cluster.tools.chaos.settings import ChaosSettings, constant_rate, steps_with_cool_down, with_cool_down
from ps_cluster.tools.chaos.verdict import complaints, complaints_of_hosted

TRACEBACK = "experiment.err"  # file with the traceback of an unexpected error, in the folder of all runs
ALL_END_WITHIN_S = 30.0  # limit for all tasks on hosts, from the end of the leader
_PRECISION = ("--precision", "float32")  # Machines may choose different precisions, so `task` requires this option.


def run_chaos(
    settings: ChaosSettings,
    root: Path | None,
    *,
    faults: Sequence[Fault] | None = None,
    bounds: ChaosBounds = ChaosBounds(),
    notify: Notify = print_line,
) -> int:
    """Inject faults into a run, and report the result.

    Return the exit code: 0 passed, 1 failed, 130 or 143 stopped by Ctrl-C or SIGTERM.

    Args:
      root: the folder for all runs and chaos.json; by default a new folder in runs/.
      faults: the faults to inject instead of those that follow from `settings`. Faults that the system does not allow
        are skipped.
    Raises:
      UserError: the settings are impossible, or the folder can't be used.
    """
    settings.check()
    root = root or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-chaos"
    with locks.sole_use(root, "--run-dir:", notify), StopRequests() as requests:
        if not locks.is_empty(root):
            raise UserError(f"--run-dir: '{root}' is not empty: choose another folder")
        kind = HostedExperiment if settings.hosts else LocalExperiment
        where = Path(os.path.realpath(root))
        report = report_of(kind(settings, where, faults, bounds, notify, lambda: requests.count > 0))
        write_json(root / "chaos.json", {"schema": SCHEMA} | report.model_dump(mode="json"))
    print_report(report, make_console())
    if report.problems:
        print_error(f"{report.problems[0]} (see {root})")
    return requests.exit_code if requests.count else int(not report.passed)


def report_of(experiment: Experiment) -> ChaosReport:
    """Carry out an experiment, and return its report even if the experiment fails.

    It may fail in many ways: a file or a process of the run is gone, a process does not end, or a fault from a user's
    file raises any exception.
    """
    try:
        problems = experiment.carry_out()
    except (ChaosFailed, UserError) as failure:  # UserError: a file of the run is damaged
        problems = [str(failure)]
    except Interrupted:
        problems = ["stopped before the end"]
    except Exception as error:
        write_whole(experiment.root / TRACEBACK, traceback.format_exc())
        why = f"{type(error).__name__}: {one_line(str(error), 200)}"
        problems = [f"the experiment itself failed: {why}; the traceback is in {TRACEBACK}"]
    return make_report(experiment.evidence, problems)


def allowed_here(
    kinds: Mapping[FaultKind, str | None], run: Run, notify: Notify
) -> tuple[list[FaultKind], dict[str, str]]:
    """Find out which kinds of fault can hit `run` on this system.

    Return two values: a list of the kinds that can hit it, and a dict that maps the name of each other kind to the
    reason why that kind can't.

    Args:
      kinds: maps each kind of fault to the reason why it is impossible, or to None if no reason is known yet.
    Raises:
      ChaosFailed: no kind of fault is possible.
    """
    reasons = {kind: reason or kind.why_not(run) for kind, reason in kinds.items()}
    allowed = [kind for kind, reason in reasons.items() if reason is None]
    skipped = {kind.name: reason for kind, reason in reasons.items() if reason is not None}
    for name, reason in skipped.items():
        notify(f"skipped: {name}: {reason}")
    if not allowed:
        raise ChaosFailed(f"none of the kinds of fault can be injected here: {'; '.join(skipped.values())}")
    return allowed, skipped


@dataclass
class Experiment(ABC):
    """The runs of one command `ps-cluster chaos`, and what is known about them."""

    settings: ChaosSettings
    root: Path
    faults: Sequence[Fault] | None  # None for the planned faults
    bounds: ChaosBounds
    notify: Notify
    stop_requested: Callable[[], bool]
    evidence: Evidence = field(init=False)  # what is known so far, for the report

    def __post_init__(self) -> None:
        self.evidence = Evidence(self.settings)

    @property
    def tools(self) -> Path:
        """The folder for files that faults need, e.g. the library that shifts the clock."""
        return self.root / "faults"

    @property
    def kinds(self) -> Mapping[FaultKind, str | None]:
        """The kinds of fault to inject. Each maps to the reason why it is impossible; None if no reason is known."""
        return self.settings.wanted() if self.faults is None else dict.fromkeys(fault.kind for fault in self.faults)

    @abstractmethod
    def carry_out(self) -> list[str]:
        """Carry out the whole experiment, and return its problems. Leave no process behind.

        Raises:
          ChaosFailed: a run did not behave as it should.
          Interrupted: the user asked to stop.
        """

    def _runner(self, run: Run, sleep: Callable[[float], None] = time.sleep) -> Runner:
        return Runner(run, bounds=self.bounds, stop_requested=self.stop_requested, notify=self.notify, sleep=sleep)

    def _disturb(self, run: Run, runner: Runner, began: float) -> None:
        """Inject the faults, and drain the run: let it finish its current steps and end.

        `began` is when the run was started, in monotonic seconds.

        The time limit for faults begins with the first update.
        """
        settings, evidence = self.settings, self.evidence
        evidence.injected = runner.injected
        try:
            runner.wait_for_training()
            until = None if settings.minutes is None else runner.clock() + 60 * settings.minutes
            allowed, evidence.skipped = allowed_here(self.kinds, run, self.notify)
            faults = settings.plan(allowed) if self.faults is None else self.faults
            runner.disturb((fault for fault in faults if fault.kind in allowed), until)
            if not runner.injected:
                raise ChaosFailed("no fault was injected: give more --minutes")
            runner.drain()
        finally:
            evidence.seconds = time.monotonic() - began

    def _announce(self, run: str) -> None:
        settings = self.settings
        what = f"{settings.faults} faults" if settings.minutes is None else f"faults for {settings.minutes:g} min"
        self.notify(f"{run}: {what}, seed {settings.seed}; files in {self.root}")


class LocalExperiment(Experiment):
    """An experiment on this machine, which compares a run with faults with runs of the same work without faults.

    The run with faults is stopped after the last fault, and later continues to its end.
    """

    def carry_out(self) -> list[str]:
        began, settings, evidence = time.monotonic(), self.settings, self.evidence
        self._announce("disturbed run")
        self.tools.mkdir()
        environment = {name: value for kind in self.kinds for name, value in kind.environment(self.tools).items()}
        options = settings.run_options(constant_rate())
        with self._training("disturbed", options, environment) as (run, runner):
            self._disturb(run, runner, began)
            summary = run.summary()
        evidence.restarts = dict(run.restarts + Counter(summary.restarts))
        evidence.resumes = run.resumes
        total = steps_with_cool_down(summary.updates.applied, settings.least_cool_down)
        schedule = with_cool_down(summary.updates.applied, total)

        self.notify(f"the disturbed run continues to step {total:,} with a falling learning rate")
        files = RunDir(self.root / "disturbed")
        write_whole(files.config, load_config(files.config).with_values(schedule).to_yaml())
        evidence.disturbed = disturbed = self._to_the_end("disturbed", None)
        took = time.monotonic() - began

        evidence.test_examples = load_pointed(files.dataset).test_examples
        for number in range(1, settings.undisturbed_runs + 1):
            of_several = f" {number} of {settings.undisturbed_runs}" * (settings.undisturbed_runs > 1)
            self.notify(f"undisturbed run{of_several}: the same {total:,} steps")
            name = "undisturbed" if number == 1 else f"undisturbed-{number}"
            evidence.undisturbed.append(self._to_the_end(name, settings.run_options(schedule)))
        step_ids = read_csv(files.updates)["step"].astype(int).tolist()
        return complaints(disturbed, evidence.undisturbed, total, step_ids, evidence.test_examples, took)

    def _to_the_end(self, name: str, options: Sequence[str] | None) -> Summary:
        with self._training(name, options) as (run, runner):
            runner.wait_for_end(self.bounds.end_s + 3 * self.evidence.seconds)
            return run.summary()

    @contextmanager
    def _training(
        self, name: str, options: Sequence[str] | None, environment: Mapping[str, str] = {}
    ) -> Iterator[tuple[LaunchedRun, Runner]]:
        output = self.root / f"{name}.out"
        run = LaunchedRun(self.root / name, output, options, tools=self.tools, environment=environment)
        try:
            yield run, self._runner(run)
        finally:
            run.stop()
            self.evidence.left += run.left_behind()


class HostedExperiment(Experiment):
    """An experiment on simulated hosts: a run with faults, whose tasks are spread over the hosts."""

    def carry_out(self) -> list[str]:
        settings, evidence = self.settings, self.evidence
        folder, output = self.root / "run", self.root / "output"
        for path in (folder, output, self.tools):
            path.mkdir()
        lost = {"cluster.lost_after_seconds": settings.lost_after_seconds}
        options = (*_PRECISION, *settings.task_options(constant_rate() | lost))
        try:
            with hosts(settings.hosts or 0, run_dir=folder) as machines:
                run = HostedRun(folder, output, options, assign_hosts(settings.topology, machines), self.tools)

                def poll_and_sleep(seconds: float) -> None:
                    run.poll()
                    time.sleep(seconds)

                self._announce(f"run on {settings.hosts} hosts")
                try:
                    self._disturb(run, self._runner(run, poll_and_sleep), time.monotonic())
                finally:
                    evidence.restarts = {str(task): n for task, n in sorted(run.restarter.restarts.items())}
                still_there = run.still_running(ALL_END_WITHIN_S)
        except NotAllowed as reason:
            raise ChaosFailed(str(reason)) from reason
        evidence.disturbed = result = run.result()
        evidence.hosted = hosted = HostedFacts(
            places={str(task): host.name for task, host in run.places.items()},
            rolled_back_seconds=result.rolled_back_seconds,
            unsaved_seconds=sum(run.unsaved),
        )
        steps = read_csv(run.files.updates)["step"].astype(int).tolist()
        return complaints_of_hosted(result, steps, hosted.unsaved_seconds, still_there)
