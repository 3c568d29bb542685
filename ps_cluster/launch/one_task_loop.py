"""Supervise the process of one task of a cluster on several machines: report events to `TaskDecisions`, and act.

Nothing here restarts a process, because a scheduler does that. The loop of `run`, which restarts tasks, is in
event_loop.py.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never

from ps_cluster.clock import AwakeClock
from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.files import writing
from ps_cluster.files.json_rows import RowTail, read_rows
from ps_cluster.launch.actions import Kill, Notice, WriteStacks
from ps_cluster.launch.one_task_decisions import (
    EndTask,
    LeaderDecisions,
    PassSignalOn,
    StartProcess,
    TaskAction,
    TaskActions,
    TaskDecisions,
)
from ps_cluster.launch.stages import RunLimits
from ps_cluster.report.progress import ProgressView
from ps_cluster.runs import checkpoints
from ps_cluster.runs.leaders import Superseded
from ps_cluster.runs.logs import DISK_REFUSES
from ps_cluster.runs.result_rows import EarlyStop, EvaluationRow, Outcome, ProgressRow, with_work
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.addresses import unknown_hosts
from ps_cluster.system.child_process import ChildProcess
from ps_cluster.system.probes import working
from ps_cluster.system.stop_signals import StopRequests

PROBE_INTERVAL_S = 2.0  # between two probes of the leader, or two reads of the mark that training has ended
GATHER_INTERVAL_S = 1.0  # between two probes of the other tasks by a leader that waits
STACKS_S = 0.5  # from the request for a process's stack traces until it is killed


class TaskWork(Protocol):
    """The methods of `OneTask` that the loop calls: they start the task's process, and write a leader's files."""

    def start(self, least_workers: int | None) -> ChildProcess:
        """Start the process that runs TensorFlow. A leader begins training with `least_workers` workers (None: all)."""

    def write_ending(self, outcome: Outcome, early_stop: EarlyStop | None) -> int:
        """Write the summary and the closing table, once.

        Return 0, or FAILED_FOR_GOOD if the proof (the check of the ledger after training) has found an error.
        """

    def write_workers(self, pids: Mapping[int, int]) -> None:
        """Write cluster.json with the pids of the workers (index → pid), because they have changed. Raises OSError."""


@dataclass(frozen=True)
class Surroundings:
    """The functions by which the loop reads the time, sleeps, and probes other tasks. Tests replace these functions."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    working: Callable[[Mapping[Task, str]], set[Task]] = working
    unknown_hosts: Callable[[Iterable[str]], list[str]] = unknown_hosts


class TaskLoop:
    """The event loop of the command `task`."""

    def __init__(
        self,
        decisions: TaskDecisions,
        run_dir: RunDir,
        view: ProgressView,
        requests: StopRequests,
        work: TaskWork,
        surroundings: Surroundings = Surroundings(),
    ):
        self._decisions = decisions
        self._run_dir = run_dir
        self._view = view
        self._requests, self._requests_seen = requests, 0
        self._work = work
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._awake = AwakeClock(surroundings.clock)
        self._progress = RowTail(run_dir.progress, ProgressRow)
        self._scores = RowTail(run_dir.evaluation, EvaluationRow)
        self._child: ChildProcess | None = None
        self._workers: dict[int, int] = {}  # index → pid, as they were last written
        self._next_probe_s = 0.0
        self._disk_refused_s = -60.0
        self._exit_code: int | None = None

    def run(self) -> int:
        """Supervise the task until it ends. Return the exit code of the command.

        If a newer leader has taken over, kill the task's process and raise Superseded. Raises UserError if another
        program has the task's port.
        """
        for rows_of_before in (self._progress, self._scores):
            rows_of_before.skip()
        if isinstance(self._decisions, LeaderDecisions):
            for score in read_rows(self._run_dir.evaluation, EvaluationRow):
                self._carry_out(self._decisions.score_seen(score, self._awake()))
        self._carry_out(self._decisions.begin(self._clock(), self._awake()))
        while self._exit_code is None:
            self._poll()
            if self._exit_code is None:
                self._surroundings.sleep(RunLimits.poll_interval_s)
        return self._exit_code

    def _poll(self) -> None:
        ended = self._child.exit_code if self._child is not None else None
        self._read_rows(stops=ended is None)
        if ended is not None:
            self._see_mark()
            return self._carry_out(self._decisions.process_ended(ended, self._requests.last_signal))
        if self._requests.count > self._requests_seen:
            self._requests_seen += 1
            return self._carry_out(self._decisions.stop_requested(self._requests.last_signal, self._awake()))
        self._check_claim()
        if self._clock() >= self._next_probe_s:
            self._probe()
        if self._child is not None and self._exit_code is None:
            self._carry_out(self._decisions.time_passed(self._child.is_frozen, self._awake()))

    def _check_claim(self) -> None:
        """If a newer leader has begun, kill the task's process, whose work no longer counts, and raise Superseded.

        Only a leader has made a claim, so nothing happens in a follower.
        """
        try:
            with contextlib.suppress(OSError):  # a shared folder that can't be read just now
                writing.check_fence()
        except Superseded:
            if self._child is not None:
                self._child.kill()
            raise

    def _probe(self) -> None:
        """Read the file that marks the end of training, and probe the tasks that `Decisions.probed_tasks` names."""
        decisions, waits = self._decisions, self._child is None
        self._see_mark()
        if addresses := decisions.probed_tasks:
            there = self._surroundings.working(addresses)
            missing = [address for task, address in addresses.items() if task not in there]
            unknown = self._surroundings.unknown_hosts(missing) if missing else []
            self._carry_out(decisions.probed(there, unknown, self._clock(), self._awake()))
        self._next_probe_s = self._clock() + (GATHER_INTERVAL_S if waits else PROBE_INTERVAL_S)

    def _see_mark(self) -> None:
        with contextlib.suppress(UserError):  # damaged, just being written, or in a shared folder that is away just now
            self._decisions.mark_seen(checkpoints.ended(self._run_dir.checkpoints))

    def _read_rows(self, *, stops: bool) -> None:
        """Read new progress rows and scores.

        `stops`: whether they may stop the training early; False once the task's process has ended.
        """
        decisions = self._decisions
        if not isinstance(decisions, LeaderDecisions) or self._child is None:
            return
        for row in with_work(self._run_dir.work, self._progress.new_rows()):
            self._view.progress(row)
            actions = decisions.progress_seen(row, self._awake())
            self._carry_out(actions if stops else ())
            self._write_workers({worker.index: worker.pid for worker in row.workers})
        for score in self._scores.new_rows():
            self._view.evaluation(score)
            if stops:
                self._carry_out(decisions.score_seen(score, self._awake()))

    def _write_workers(self, pids: dict[int, int]) -> None:
        if pids == self._workers:
            return
        try:
            self._work.write_workers(pids)
            self._workers = pids
        except OSError as error:  # the next row tries again
            if self._clock() - self._disk_refused_s > 10.0:
                self._disk_refused_s = self._clock()
                line = f"training continues, but cluster.json can't be written: {error.strerror}"
                self._view.notice(DISK_REFUSES(line))

    def _carry_out(self, actions: TaskActions) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: TaskAction) -> None:
        match action:
            case Notice(line):
                self._view.notice(line)
            case StartProcess(least_workers):
                self._child = self._work.start(least_workers)
            case PassSignalOn(number):
                self._running.signal(number)
            case WriteStacks():
                self._running.signal(signal.SIGUSR1)
                self._surroundings.sleep(STACKS_S)
            case Kill():
                self._running.kill()
            case EndTask():
                if action.error is not None:
                    raise UserError(action.error)
                self._read_rows(stops=False)
                proof_code = 0
                if action.outcome is not None:
                    proof_code = self._work.write_ending(action.outcome, action.early_stop)
                self._exit_code = proof_code if proof_code and action.proof_decides else action.exit_code
            case _:
                assert_never(action)

    @property
    def _running(self) -> ChildProcess:
        assert self._child is not None, "the process of the task has not been started"
        return self._child
