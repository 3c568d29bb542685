"""Run `ps-cluster chaos`: disturb a run, and see that nothing was lost.

A run of this machine is compared with an undisturbed run of the same work. The number of steps is known only after the
last fault, and the final accuracy says little while the learning rate is high. So the disturbed run has a constant rate
until the last fault, is drained there after M steps, and continues with a cool-down in which the rate falls. The
undisturbed run has the same rate at every step: constant for M steps, then falling. Both end after the same number of
updates, computed from the same batches. Equal asynchronous runs end with different accuracies, so several undisturbed runs
are needed to judge the accuracy. A run on hosts is judged by itself.
"""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.config import load_config
from ps_cluster.config.tasks import Task
from ps_cluster.data.packed import load_pointed
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.launch.rules import LauncherLimits
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.runs.proof import read_csv
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.tools.chaos.disturbed_runs import HostedRun, Run, TrainingRun, placed
from ps_cluster.tools.chaos.hosts import NotAllowed, hosts
from ps_cluster.tools.chaos.kind import ChaosFailed, FaultKind, Injection, Row, Scene
from ps_cluster.tools.chaos.settings import ChaosSettings, Fault, allowed_here, constant_rate, with_cool_down
from ps_cluster.tools.chaos.verdict import (
    Evidence,
    Injected,
    complaints,
    complaints_of_hosted,
    make_report,
    print_report,
)

ALL_END_WITHIN_S = 30.0  # after the leader on hosts has ended

_PRECISION = ("--precision", "float32")  # machines may come to different ones, so `task` wants it named


def run_chaos(
    settings: ChaosSettings,
    root: Path | None,
    *,
    faults: Sequence[Fault] | None = None,
    bounds: ChaosBounds | None = None,
    notify: Callable[[str], None] = print_line,
) -> int:
    """Return the exit code: 0 passed, 1 failed, 130 or 143 stopped by Ctrl-C or SIGTERM. Bad input: UserError.

    Args:
      root: folder of all runs and chaos.json; None makes a new folder under runs/.
      faults: replace those of the plan. Faults that the system does not allow are skipped.
    """
    settings.check()
    root = root or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-chaos"
    with locks.sole_use(root, "--run-dir:", notify), StopRequests() as requests:
        if not locks.is_empty(root):
            raise UserError(f"--run-dir: '{root}' is not empty: choose another")
        kind = OnHosts if settings.hosts else BesideUndisturbed
        experiment = kind(
            settings, Path(os.path.realpath(root)), bounds or ChaosBounds(), notify, lambda: requests.count > 0
        )
        try:
            problems = experiment.carry_out(faults)
        except ChaosFailed as failure:
            problems = [str(failure)]
        except Interrupted:
            problems = ["stopped before the end"]
        # A process or a file of the run that went away meanwhile, or a process that does not end.
        except (OSError, psutil.Error, subprocess.SubprocessError) as error:
            problems = [f"the experiment itself failed: {type(error).__name__}: {one_line(str(error), 200)}"]
        report = make_report(experiment.evidence, problems)
        write_json(root / "chaos.json", report)
    print_report(report, make_console())
    if report["problems"]:
        print_error(f"{report['problems'][0]} (see {root})")
    return requests.exit_code if requests.count else int(not report["passed"])


class Experiment(ABC):
    """The runs of one call. `evidence`: what is known so far, so that there is a report however chaos ends."""

    def __init__(
        self,
        settings: ChaosSettings,
        root: Path,
        bounds: ChaosBounds,
        notify: Callable[[str], None],
        stop_requested: Callable[[], bool],
    ):
        self.evidence = Evidence(asdict(settings), leader=str(settings.topology.leader))
        self._settings = settings
        self._root = root
        self._bounds = bounds
        self._notify = notify
        self._stop_requested = stop_requested
        self._tools = root / "faults"

    @abstractmethod
    def carry_out(self, faults: Sequence[Fault] | None) -> list[str]:
        """Do all of it; return the problems. Leaves no process.

        Args:
          faults: those of the plan where None.
        Raises:
          ChaosFailed: a run did not behave.
          Interrupted: the user asked to stop.
        """

    def _kinds(self, faults: Sequence[Fault] | None) -> Mapping[FaultKind, str | None]:
        return self._settings.wanted() if faults is None else dict.fromkeys(fault.kind for fault in faults)

    def _disturb(self, run: Run, runner: Runner, faults: Sequence[Fault] | None, began: float) -> None:
        """Inject the faults, or those of the plan, and drain the run. `began`: when it was started (monotonic s)."""
        settings, evidence = self._settings, self.evidence
        evidence.injected = runner.injected
        until = None if settings.minutes is None else began + 60 * settings.minutes
        try:
            runner.wait_for_training()
            allowed, evidence.skipped = allowed_here(self._kinds(faults), run, self._notify)
            given = None if faults is None else [fault for fault in faults if fault.kind in allowed]
            runner.disturb(settings.plan(allowed) if given is None else given, until)
            runner.drain()
        finally:
            evidence.seconds = time.monotonic() - began

    def _say_what(self, run: str) -> None:
        settings = self._settings
        what = f"{settings.faults} faults" if settings.minutes is None else f"faults for {settings.minutes:g} min"
        self._notify(f"{run}: {what}, seed {settings.seed}; files in {self._root}")


class BesideUndisturbed(Experiment):
    """A run of this machine that is disturbed and goes on to its end, and undisturbed ones of the same work."""

    def carry_out(self, faults: Sequence[Fault] | None) -> list[str]:
        began, settings, evidence = time.monotonic(), self._settings, self.evidence
        self._say_what("disturbed run")
        self._tools.mkdir()
        environment = {
            name: value for kind in self._kinds(faults) for name, value in kind.environment(self._tools).items()
        }
        options = settings.run_options(constant_rate(settings.most_steps()))
        with self._training("disturbed", options, environment) as (run, runner):
            self._disturb(run, runner, faults, began)
            summary = run.summary()
        evidence.restarts = dict(run.restarts + Counter(summary["restarts"]))
        evidence.resumes = run.resumes
        schedule = with_cool_down(summary["updates"]["applied"], settings.least_cool_down)
        total: int = schedule["training.steps"]

        self._notify(f"it goes on to step {total:,} with a falling learning rate")
        files = RunDir(self._root / "disturbed")
        write_whole(files.config, load_config(files.config).with_values(schedule).to_yaml())
        evidence.disturbed = disturbed = self._to_the_end("disturbed", None)
        took = time.monotonic() - began

        evidence.test_examples = load_pointed(files.dataset).test_examples
        for number in range(1, settings.undisturbed_runs + 1):
            of_several = f" {number} of {settings.undisturbed_runs}" * (settings.undisturbed_runs > 1)
            self._notify(f"undisturbed run{of_several}: the same {total:,} steps")
            name = "undisturbed" if number == 1 else f"undisturbed-{number}"
            evidence.undisturbed.append(self._to_the_end(name, settings.run_options(schedule)))
        step_ids = read_csv(files.updates)["step"].astype(int).tolist()
        return complaints(disturbed, evidence.undisturbed, total, step_ids, evidence.test_examples, took)

    def _to_the_end(self, name: str, options: Sequence[str] | None) -> dict[str, Any]:
        with self._training(name, options) as (run, runner):
            runner.wait_for_end(self._bounds.end_s + 3 * self.evidence.seconds)
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
            self.evidence.left += run.left_behind()


class OnHosts(Experiment):
    """A run whose tasks are on hosts."""

    def carry_out(self, faults: Sequence[Fault] | None) -> list[str]:
        settings, evidence = self._settings, self.evidence
        folder, output = self._root / "run", self._root / "output"
        for path in (folder, output, self._tools):
            path.mkdir()
        lost = {"cluster.lost_after_seconds": settings.lost_after_seconds}
        options = (*_PRECISION, *settings.task_options(constant_rate(settings.most_steps()) | lost))
        assert settings.hosts
        try:
            with hosts(settings.hosts, run_dir=folder) as machines:
                places = placed(settings.topology, machines)
                run = HostedRun(folder, output, options, places, self._tools)

                def look_on(seconds: float) -> None:
                    run.look()
                    time.sleep(seconds)

                stop, notify = self._stop_requested, self._notify
                runner = Runner(run, bounds=self._bounds, stop_requested=stop, notify=notify, sleep=look_on)
                self._say_what(f"run on {settings.hosts} hosts")
                try:
                    self._disturb(run, runner, faults, time.monotonic())
                finally:
                    evidence.restarts = {str(task): n for task, n in sorted(run.restarter.restarts.items())}
                still_there = run.still_running(ALL_END_WITHIN_S)
        except NotAllowed as reason:
            raise ChaosFailed(str(reason)) from reason
        evidence.disturbed = result = run.result().model_dump()
        evidence.hosted = {
            "places": {str(task): host.name for task, host in places.items()},
            "rolled_back_seconds": result["rolled_back_seconds"],
            "unsaved_seconds": sum(run.unsaved),
        }
        steps = read_csv(run.files.updates)["step"].astype(int).tolist()
        return complaints_of_hosted(result, steps, sum(run.unsaved), still_there)


# Inject faults into a run, one after the other, and measure the time of each recovery.


class Interrupted(Exception):
    """The user asked to stop."""


@dataclass(frozen=True)
class ChaosBounds:
    """Time limits, and the least time between faults (s)."""

    look_every_s: float = 0.1
    training_s: float = LauncherLimits.startup_s + 30
    recovery_s: float = 60.0
    # The launcher gives up on a cluster that dies a few times in a row, each time without having got further.
    whole_cluster_spacing_s: float = 10.0
    end_s: float = LauncherLimits.drain_s + LauncherLimits.scoring_s + 60


class Runner:
    """Disturbs one run. `injected`: the faults so far."""

    def __init__(
        self,
        run: Run,
        *,
        bounds: ChaosBounds = ChaosBounds(),
        stop_requested: Callable[[], bool] = lambda: False,
        notify: Callable[[str], None] = print,
        kill: Callable[[int, int], None] = os.kill,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.injected: list[Injected] = []
        self._run = run
        self._bounds = bounds
        self._stop_requested = stop_requested
        self._notify = notify
        self._kill = kill
        self._clock = clock
        self._sleep = sleep
        self._last_row: Row = {}

    def wait_for_training(self) -> None:
        """Wait for the first update."""

        def trains() -> bool:
            return any(row["phase"] == "training" and row["applied"] > 0 for row in self._new_rows())

        self._wait_for(trains, self._bounds.training_s, "no update was applied")

    def disturb(self, faults: Iterable[Fault], until: float | None = None) -> None:
        """Inject `faults` into a training run, each when it has recovered from the last.

        Args:
          until: monotonic s after which no further fault is injected.
        Raises:
          ChaosFailed: the run ended by itself, or did not recover in time.
          Interrupted: see `stop_requested`.
        """
        for fault in faults:
            self._pause(fault)
            if until is not None and self._clock() >= until:
                return
            self._inject(fault)

    def drain(self) -> None:
        """Interrupt the run once: the steps under way end, the last checkpoint is scored, the summary is written."""
        self._run.interrupt()
        self.wait_for_end(self._bounds.end_s)

    def wait_for_end(self, limit_s: float, exit_code: int = 0) -> None:
        """Wait until the run has ended. Raises ChaosFailed for another exit code."""
        deadline = self._clock() + limit_s
        while self._run.exit_code is None:
            self._look_out(deadline, "the run did not end", limit_s)
        if self._run.exit_code != exit_code:
            other = "failed with" if exit_code == 0 else f"was to end with exit code {exit_code} and had"
            raise ChaosFailed(f"the run {other} exit code {self._run.exit_code}: {self._run.last_line}")

    def _inject(self, fault: Fault) -> None:
        names = " and ".join(map(str, fault.victims)) or "the run"
        running: Mapping[Task, int] = {}

        def all_run() -> bool:
            nonlocal running
            running = self._run.running()
            return running.keys() >= set(fault.victims)

        self._wait_for(all_run, self._bounds.recovery_s, f"{names} did not run")
        self._new_rows()
        began = self._clock()
        self._injected(fault, began, None)
        try:
            injection = fault.kind.inject(self._scene(fault, running))
        except NotAllowed as reason:
            raise ChaosFailed(f"{fault.kind.name} could not be injected: {reason}") from reason
        self._wait_for_signs(injection)
        injection.then()
        self.injected.pop()
        recovered_at = max(sign.seen_at for sign in injection.signs if sign.seen_at is not None)
        recovery_s = max(0.0, recovered_at - injection.time)
        self._injected(fault, began, recovery_s)
        self._notify(
            f"{len(self.injected):4d}  {fault.kind.name} ({names}): recovered in {recovery_s:.1f} s, "
            f"at update {self._last_row['applied']:,}"
        )

    def _scene(self, fault: Fault, running: Mapping[Task, int]) -> Scene:
        return Scene(
            run=self._run,
            victims={victim: running[victim] for victim in fault.victims},
            whole_cluster=fault.whole_cluster,
            last_row=self._last_row,
            now=self._clock,
            kill=self._kill,
            wait_for=self._wait_for,
            wait_for_end=lambda exit_code: self.wait_for_end(self._bounds.end_s, exit_code),
        )

    def _wait_for_signs(self, injection: Injection) -> None:
        def recovered() -> bool:
            rows, now_running = self._new_rows(), self._run.running()
            for sign in injection.signs:
                sign.look(rows, now_running, self._clock())
            return all(sign.seen_at is not None for sign in injection.signs)

        def missing() -> str:
            return ", ".join(sign.missing for sign in injection.signs if sign.seen_at is None)

        self._wait_for(recovered, self._bounds.recovery_s, missing)

    def _injected(self, fault: Fault, time_s: float, recovery_s: float | None) -> None:
        victims = tuple(map(str, fault.victims))
        self.injected.append(Injected(fault.kind.name, victims, time_s, fault.whole_cluster, recovery_s))

    def _pause(self, fault: Fault) -> None:
        """Leave the run alone before `fault`."""
        until = self._clock() + fault.pause_s
        if fault.whole_cluster:
            before = [injected.time for injected in self.injected if injected.whole_cluster]
            until = max([until, *(time_s + self._bounds.whole_cluster_spacing_s for time_s in before)])
        while self._clock() < until:
            self._goes_on()
            self._sleep(self._bounds.look_every_s)

    def _new_rows(self) -> Sequence[Row]:
        rows = self._run.new_rows()
        self._last_row = rows[-1] if rows else self._last_row
        return rows

    def _wait_for(self, condition: Callable[[], bool], limit_s: float, problem: str | Callable[[], str]) -> None:
        """Wait for the condition. Raises ChaosFailed with the problem after `limit_s`, or when the run ends first."""
        deadline = self._clock() + limit_s
        while not condition():
            self._goes_on()
            self._look_out(deadline, problem, limit_s)

    def _goes_on(self) -> None:
        if self._stop_requested():
            raise Interrupted
        if self._run.exit_code is not None:
            done = f"after {len(self.injected)} faults (exit code {self._run.exit_code})"
            raise ChaosFailed(f"the run ended by itself {done}: {self._run.last_line}")

    def _look_out(self, deadline: float, problem: str | Callable[[], str], limit_s: float) -> None:
        if self._stop_requested():
            raise Interrupted
        if self._clock() > deadline:
            told = problem if isinstance(problem, str) else problem()
            after = f" after {self.injected[-1].kind}" if self.injected else ""
            raise ChaosFailed(f"{told} within {limit_s:.0f} s{after}")
        self._sleep(self._bounds.look_every_s)
