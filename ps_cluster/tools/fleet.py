"""Train several runs at once: start each as a `run` command, continue those that die, and stop them all."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ps_cluster.clock import AwakeClock
from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.setting_types import AUTO
from ps_cluster.config.tasks import Task
from ps_cluster.config.user_settings import without_variables
from ps_cluster.errors import BAD_INPUT, UserError
from ps_cluster.files import locks
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import environment_with_package
from ps_cluster.launch.recovery import RestartPolicy
from ps_cluster.launch.stages import FrozenProcesses
from ps_cluster.notices import Notify
from ps_cluster.process_variables import CALLER_PID
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import ERROR_PREFIX, with_log
from ps_cluster.runs.result_rows import BROKEN
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.scores import outcome_of
from ps_cluster.system.limits import allowance
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.system.supervisor import Supervisor, TaskExit, TaskSpec

COMMAND = (sys.executable, "-m", "ps_cluster", "run")
RETRIES = 2  # how often a run that died is continued, without a pause, before it counts as failed
FROZEN_S = 60.0  # a command that has been stopped (SIGSTOP) for this long is ended, and another one continues the run
GRACE_S = 10.0  # from the last request to stop until SIGKILL
DRAIN_S = 120.0  # after a stop request: time for the steps under way, a last checkpoint and its score
POLL_INTERVAL_S = 0.5

JobOutcome = Literal["completed", "stopped", "failed"]


@dataclass(frozen=True)
class Job:
    """A run to be trained."""

    index: int
    name: str  # in messages, e.g. "trial 3"
    root: Path  # its run directory; its settings (.yaml) and the output of its command (.log) are in the same folder
    config: RunConfig  # complete

    @property
    def settings(self) -> Path:
        return self.root.with_name(f"{self.root.name}.yaml")

    @property
    def log(self) -> Path:
        return self.root.with_name(f"{self.root.name}.log")

    @property
    def task(self) -> Task:
        return Task("run", self.index)


@dataclass(frozen=True)
class EndedJob:
    """A run that has ended, and its outcome. `why` is the reason of a failure, in one line."""

    job: Job
    outcome: JobOutcome
    why: str = ""


class Fleet:
    """A group of runs that train at the same time, at most `at_once`.

    If this process ends, even by SIGKILL, all runs of the group end too.
    """

    def __init__(
        self,
        at_once: int,
        notify: Notify,
        *,
        grace_s: float = GRACE_S,
        command: tuple[str, ...] = COMMAND,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._at_once = at_once
        self._notify = notify
        self._grace_s = grace_s
        self._command = command
        self._supervisor = Supervisor()
        self._clock = clock
        self._jobs: dict[Task, Job] = {}
        self._restarts = RestartPolicy[Task](delays_s=(0.0,))
        self._told_to_stop: set[Task] = set()
        self._frozen = FrozenProcesses(FROZEN_S)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The runs under way, in the order of their starts."""
        return tuple(self._jobs.values())

    @property
    def has_room(self) -> bool:
        return len(self._jobs) < self._at_once

    def start(self, job: Job) -> None:
        """Start a run, or continue one that has begun. Raises UserError if processes of an earlier start are alive."""
        self._launch(job)
        self._jobs[job.task] = job
        self._restarts.end_streak(job.task)

    def poll(self) -> list[EndedJob]:
        """Return the runs that have ended since the last call. Start new processes for runs that died but can continue."""
        for task in self._frozen.take_overdue(self._supervisor.frozen(), self._clock()):
            self._notify(f"{self._jobs[task].name} has been stopped (SIGSTOP) for {FROZEN_S:g} s, so it is killed")
            self._supervisor.signal(task, signal.SIGKILL)
        return [ended for task_exit in self._supervisor.poll() if (ended := self._judged(task_exit)) is not None]

    def ask_to_stop(self, job: Job) -> None:
        """Ask a run to finish its steps, write a checkpoint, score it and end. A second call ends it at once."""
        self._told_to_stop.add(job.task)
        self._supervisor.signal(job.task, signal.SIGTERM)

    def end_all(self) -> None:
        """End all runs under way, within a bounded time. They can be continued later."""
        for process in self._supervisor.stop_all(self._grace_s):
            self._notify(f"{self._jobs[process.task].name} (pid {process.pid}) could not be ended")
        self._jobs.clear()

    def _launch(self, job: Job) -> None:
        if _can_resume(job):
            options: tuple[str, ...] = ("--resume", str(job.root))
        else:
            _remove(job)
            write_whole(job.settings, job.config.to_yaml())
            options = ("--run-dir", str(job.root), "--config", str(job.settings))
        threads = max(1, allowance().threads // self._at_once)  # otherwise each run would use all processors
        given = {"TF_NUM_INTRAOP_THREADS": str(threads), **without_variables(os.environ), CALLER_PID: str(os.getpid())}
        error = job.root.with_name(f"{job.root.name}.error")  # `run` writes why it failed into its log, not here
        spec = TaskSpec(
            job.task, (*self._command, *options), environment_with_package(given), Path.cwd(), job.log, error
        )
        self._supervisor.start(spec)

    def _judged(self, task_exit: TaskExit) -> EndedJob | None:
        """Return the outcome of a run whose process has exited; None if the run was continued in a new process."""
        job = self._jobs[task_exit.task]
        if has_completed(job.root):
            return self._over(job, "completed")
        if job.task in self._told_to_stop:
            return self._over(job, "stopped")
        line = task_exit.last_line.removeprefix(ERROR_PREFIX) or "no output"
        why = with_log(f"{task_exit.how_ended}: {line}", job.log)
        is_hopeless = task_exit.exit_code == BAD_INPUT or _outcome(job.root) in BROKEN
        if is_hopeless or self._restarts.record_death(job.task, RETRIES) is None:
            return self._over(job, "failed", why)
        self._notify(f"{job.name} died and is continued (retry {self._restarts.deaths(job.task)} of {RETRIES}): {why}")
        try:
            self._launch(job)
        except (UserError, OSError) as error:  # OSError: the machine refuses another process
            return self._over(job, "failed", str(error))
        return None

    def _over(self, job: Job, outcome: JobOutcome, why: str = "") -> EndedJob:
        del self._jobs[job.task]
        self._supervisor.forget(job.task)
        self._told_to_stop.discard(job.task)
        return EndedJob(job, outcome, why)


def has_completed(root: Path) -> bool:
    """Return whether a run is trained and scored. Return False if its files are damaged."""
    return _outcome(root) == "completed"


def _outcome(root: Path) -> str | None:
    try:
        return outcome_of(root)
    except UserError:  # a damaged file, which the resumed run writes again
        return None


def _can_resume(job: Job) -> bool:
    """Return whether the run directory has a checkpoint or a snapshot, and was written with the job's settings."""
    run_dir = RunDir(job.root)
    if not run_dir.config.is_file() or not any(checkpoints.steps(states) for states in run_dir.states):
        return False
    return job.settings.is_file() and job.settings.read_text(encoding="utf-8") == job.config.to_yaml()


def _remove(job: Job) -> None:
    """Remove the files of a run that died before its first snapshot, or that had other settings."""
    if job.root.exists():
        locks.wait_for_sharers(RunDir(job.root).alive, job.name)
        shutil.rmtree(job.root)


def config_at_once(values: Mapping[str, object]) -> RunConfig:
    """Return the configuration of a run that trains at the same time as other runs, with an evaluator.

    `values`: the settings of the run, dotted key → value. Raises UserError if they are invalid.
    """
    judged = {"evaluation.draw_results": False, "cluster.evaluator": True}
    config = build_config(None, {**values, **judged})
    config.check_fits_one_machine()
    if config.cluster.pin_workers == AUTO:  # runs at the same time would be pinned to the same cores
        config = config.with_values({"cluster.pin_workers": False})
    return config


def train_at_once(
    fleet: Fleet, requests: StopRequests, notify: Notify, *,
    start_next: Callable[[], bool],
    ended: Callable[[EndedJob], None],
    poll: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] | None = None,
) -> int:  # fmt: skip
    """Train runs until no run is left, or until a stop is requested. Return the exit code.

    After the first stop request, the runs finish their current steps, write a checkpoint and score it. A second request
    ends them at once. Runs that have not ended `DRAIN_S` seconds after the first request are then ended, too.

    Args:
      start_next: starts the next run in `fleet`, and returns whether there was one.
      ended: is called with each run that is over.
      poll: called about every `POLL_INTERVAL_S` seconds, so that the caller can read new scores of the runs.
    """
    clock = clock or AwakeClock()
    passed_on, deadline = 0, math.inf
    try:
        while True:
            for one in fleet.poll():
                ended(one)
            poll()
            while not requests.count and fleet.has_room and start_next():
                pass
            if requests.count and not passed_on:
                deadline = clock() + DRAIN_S
                count = len(fleet.jobs)
                notify(
                    f"stopping {count} run{'s' * (count != 1)}, within {DRAIN_S:g} s; a second request ends them at once"
                )
            if passed_on < min(requests.count, 2):
                passed_on += 1
                for job in fleet.jobs:
                    fleet.ask_to_stop(job)
            if not fleet.jobs or clock() > deadline:
                return requests.exit_code if requests.count else 0
            sleep(POLL_INTERVAL_S)
    finally:
        fleet.end_all()
