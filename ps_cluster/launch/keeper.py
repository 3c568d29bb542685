"""Keep one task of a cluster on several machines: wait, start its process, look after it, and say how it ended.

The process that runs TensorFlow is a child, because TensorFlow may hold up its whole process, signals included, while
it waits for another machine. This one never waits for long, so it hears every signal and keeps every limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ps_cluster.clock import AwakeClock
from ps_cluster.config.modes import WORKER, Task
from ps_cluster.errors import BAD_INPUT, FAILED, PORT_IN_USE, RETRY, SUPERSEDED, UserError
from ps_cluster.files import writing
from ps_cluster.files.json_files import RowTail
from ps_cluster.launch.rules import BEGUN, STAGES, LauncherLimits, RunStage, diverged_line
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.report.progress import ProgressView
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import CONNECTED, DRAINING, TASK_ENDED, TASK_GIVES_UP, WAITING
from ps_cluster.runs.messages import Superseded
from ps_cluster.runs.result_rows import SAVING, EvaluationRow, ProgressRow, with_work
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.environment import StopRequests
from ps_cluster.system.network import working
from ps_cluster.system.supervisor import is_stopped

LOOK_EVERY_S = 0.2
PROBE_EVERY_S = 2.0  # for the leader, by the others
GATHER_EVERY_S = 1.0  # a look for the others, by the leader
SAY_EVERY_S = 10.0
REST_S = 60.0  # how long to wait for the other workers once everything else is there
_NAMED = 3
STACKS_S = 0.5  # for the stacks of a process to be written before it is killed

Reach = Callable[[Mapping[Task, str]], set[Task]]


@dataclass(frozen=True)
class RendezvousLimits:
    """Bounds of the wait for other tasks: its length, and the number of workers that are enough.

    Attributes:
      wait_s: for the tasks that are needed.
      least_workers: begin as soon as so many are there; None: all, or those that came within `REST_S`.
      needs_all: the mode can't do with fewer workers than all.
    """

    wait_s: float
    least_workers: int | None = None
    needs_all: bool = False


class RepeatedNotice:
    """Says what is waited for: when that changes, and every 10 s."""

    def __init__(self, notice: Callable[[str], None], clock: Callable[[], float]):
        self._notice = notice
        self._clock = clock
        self._about: object = None
        self._next_s = 0.0

    def __call__(self, line: str, about: object, *, once: bool = False) -> None:
        """Say a line. `about`: what it is about; equal things are said again only after 10 s, or never (`once`)."""
        now_s = self._clock()
        if about != self._about or now_s >= self._next_s and not once:
            self._about, self._next_s = about, now_s + SAY_EVERY_S
            self._notice(line)


class TaskSupervisor:
    """Keeps one task. `run` returns the exit code of the command."""

    def __init__(
        self, task: Task, topology: ClusterTopology, run_dir: RunDir, view: ProgressView, requests: StopRequests,
        start: Callable[[int | None], subprocess.Popen[bytes]], limits: LauncherLimits, patience: RendezvousLimits,
        *, conclude: Callable[[str], int] = lambda outcome: 0, total: int | None = None,
        note_workers: Callable[[Mapping[int, int]], None] = lambda pids: None,
        reach: Reach = working, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):  # fmt: skip
        """Prepare.

        Args:
          start: starts the task's process; the leader's gets the number of workers that are enough.
          conclude: called by the leader once, with the outcome of its training; returns the exit code of the proof.
          note_workers: called by the leader with index → pid of the workers, whenever they have changed.
        """
        self._task = task
        self._topology = topology
        self._run_dir = run_dir
        self._view = view
        self._requests = requests
        self._heard = 0
        self._start = start
        self._limits = limits
        self._patience = patience
        self._conclude, self._concluded = conclude, False
        self._note_workers, self._workers = note_workers, dict[int, int]()
        self._total = total
        self._reach = reach
        self._clock = clock
        self._awake = AwakeClock(clock)  # for the limits of the process: both may be frozen together
        self._sleep = sleep
        self._leads = task == topology.leader
        self._progress = RowTail(run_dir.progress, ProgressRow)
        self._scores = RowTail(run_dir.evaluation, EvaluationRow)
        self._begun = False
        self._counts: tuple[int, int] = (0, 0)
        self._longest_wait_s = 0.0  # for an update, as the leader's process tells
        self._moved_s = self._awake()  # when the last update was seen, or the process was started
        self._frozen_s: float | None = None
        self._drains = False
        self._next_probe_s = 0.0
        self._leader_s: float | None = None  # when the leader was last reached; None: not yet
        self._say = RepeatedNotice(view.notice, clock)

    def run(self) -> int:
        """Wait for the others where that is necessary, keep the task's process, and return the exit code."""
        address = self._topology.address(self._task)
        self._view.notice(f"{self._task}{f' at {address}' if address else ''}")
        for rows_of_before in (self._progress, self._scores):
            rows_of_before.skip()
        least: int | None = None
        if self._leads and len(self._topology.tasks) > 1:
            least = gathered(
                self._topology, self._patience, self._requests, self._view.notice,
                reach=self._reach, clock=self._clock, sleep=self._sleep,
            )  # fmt: skip
            if least is None:
                return self._not_begun()
        code = self._keep(self._start(least))
        if self._leads and not self._concluded and code not in (BAD_INPUT, SUPERSEDED):
            self._conclude("stopped" if self._requests.count else "failed")
        return code

    def _keep(self, child: subprocess.Popen[bytes]) -> int:
        """Look after the process until the task ends; return the exit code."""
        self._moved_s, began_s = self._awake(), self._clock()
        while True:
            ended = child.poll()
            self._read_rows()
            if ended is not None:
                return self._after(ended)
            code = self._heed(child)
            if code is None:
                code = self._lead(child) if self._leads else self._follow(child, began_s)
            if code is not None:
                self._read_rows()
                return code
            self._sleep(LOOK_EVERY_S)

    # Keeping the process.

    def _heed(self, child: subprocess.Popen[bytes]) -> int | None:
        """Do what a signal, or a frozen process, asks for; return the exit code if the task ends by it."""
        if self._requests.count > self._heard:
            first, self._heard = self._heard == 0, self._requests.count
            if self._leads and self._begun and first:
                self._drains, self._moved_s = True, self._awake()
                line = "stopping: no new steps; a last checkpoint is written when those under way have ended"
                self._view.notice(DRAINING(line))
                child.send_signal(self._requests.last_signal)
                return None
            _end(child)
            return self._say_stopped()
        if not is_stopped(child.pid):
            self._frozen_s = None
        elif self._frozen_s is None:
            self._frozen_s = self._awake()
        elif self._awake() - self._frozen_s >= self._limits.frozen_s:
            return self._kill(child, f"its process was frozen for {self._limits.frozen_s:g} s")
        return None

    def _not_begun(self) -> int:
        if self._requests.count:
            return self._say_stopped()
        if self._has_ended(self._total):  # it ended before it could say so
            self._view.notice(TASK_ENDED(f"{self._task} has ended: training is completed"))
            return 0
        self._view.notice(TASK_GIVES_UP(f"{self._task} ends; {_AGAIN}"))
        return RETRY

    def _say_stopped(self) -> int:
        name = signal.Signals(self._requests.last_signal).name
        self._view.notice(TASK_ENDED(f"{self._task} was stopped by {name}"))
        return self._requests.exit_code

    def _kill(self, child: subprocess.Popen[bytes], why: str) -> int:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGUSR1)  # its stacks tell where it hangs
        self._sleep(STACKS_S)
        _end(child)
        self._view.notice(TASK_GIVES_UP(f"{self._task} ends: {why}; {_AGAIN}"))
        return RETRY

    def _lead(self, child: subprocess.Popen[bytes]) -> int | None:
        """Keep the limits of the leader: a start, an update, and an end all come in time; no newer leader is there."""
        try:
            with contextlib.suppress(OSError):  # a shared folder that can't be read just now
                writing.check()
        except Superseded:  # the process itself may hang: what it made on the servers is the older leader's
            _end(child)
            raise
        still_s, limits = self._awake() - self._moved_s, self._limits.for_waits_of(self._longest_wait_s)
        stage = RunStage.DRAINING if self._drains else RunStage.TRAINING if self._begun else RunStage.STARTING
        limit_s, what = STAGES[stage].seconds(limits), STAGES[stage].message.format(leader=self._task)
        if stage is RunStage.STARTING and self._task.type == WORKER:
            limit_s += self._patience.wait_s  # without a chief its process waits for the other workers
        if still_s <= limit_s:
            return None
        if self._has_ended(self._total):  # only its last words to the others take long
            _end(child)
            return self._after_its_end()
        return self._kill(child, f"{what} for {limit_s:.0f} s")

    def _follow(self, child: subprocess.Popen[bytes], began_s: float) -> int | None:
        """Look for the leader; end where it is away for too long."""
        address = self._topology.address(self._topology.leader)
        now_s = self._clock()
        if address is None or self._task.type not in self._topology.types or now_s < self._next_probe_s:
            return None
        self._next_probe_s = now_s + PROBE_EVERY_S
        leader = self._topology.leader
        if self._reach({leader: address}):
            self._leader_s = now_s
            self._say(CONNECTED(f"{leader} ({address}) answers"), about="there", once=True)
            return None
        away_s = now_s - (self._leader_s or began_s)
        if self._leader_s is not None and away_s > SAY_EVERY_S and self._has_ended():
            _end(child)
            self._view.notice(TASK_ENDED(f"{self._task} has ended: training is completed"))
            return 0
        if away_s >= self._patience.wait_s:
            if self._has_ended():
                _end(child)
                return 0
            return self._kill(child, f"{leader} ({address}) did not answer for {self._patience.wait_s:g} s")
        line = f"waiting for {leader} ({address}) ({away_s:.0f} of {self._patience.wait_s:g} s)"
        self._say(WAITING(line), about="away")
        return None

    def _has_ended(self, total: int | None = None) -> bool:
        """Return whether the run directory, if this task shares the leader's, says that training is complete.

        Args:
          total: with as many updates; None: whatever their number.
        """
        with contextlib.suppress(UserError):
            ended = checkpoints.ended(self._run_dir.checkpoints)
            return ended is not None and ended.outcome == "completed" and total in (None, ended.last_step)
        return False

    def _after(self, code: int) -> int:
        """Return the exit code of the command after that of the process."""
        if code == 0:
            return self._after_its_end()
        if code == PORT_IN_USE:
            raise UserError(taken(self._task, self._topology))
        if code in (FAILED, BAD_INPUT, SUPERSEDED, RETRY):  # the process has said why
            return code
        number = -code if code < 0 else code - 128
        self._view.notice(TASK_GIVES_UP(f"{self._task} was ended by {_signal_name(number)}; {_GOES_ON}"))
        return 128 + number

    def _after_its_end(self) -> int:
        if not self._leads:
            self._view.notice(TASK_ENDED(f"{self._task} has ended"))
            return 0
        ended = checkpoints.ended(self._run_dir.checkpoints)
        if ended is None:
            self._view.notice(TASK_GIVES_UP(f"{self._task} has ended without a result"))
            return FAILED
        line = f"{self._task} has ended: training is {ended.outcome} at step {ended.last_step:,}"
        self._view.notice(TASK_ENDED(line, outcome=ended.outcome, step=ended.last_step))
        code, self._concluded = self._conclude(ended.outcome), True
        if ended.outcome == "diverged":
            self._view.notice(TASK_GIVES_UP(diverged_line(ended.last_step)))
            return FAILED
        preempted = ended.outcome != "completed" and self._requests.last_signal not in (0, signal.SIGINT)
        return RETRY if preempted else code

    # Saying.

    def _read_rows(self) -> None:
        if not self._leads:
            return
        for row in with_work(self._run_dir.work, self._progress.new_rows()):
            self._view.progress(row.model_dump())
            self._begun |= row.phase in BEGUN
            self._longest_wait_s = row.longest_wait_seconds
            if (workers := {worker.index: worker.pid for worker in row.workers}) != self._workers:
                self._workers = workers
                self._note_workers(workers)
            if self._begun and ((row.applied, row.written) != self._counts or row.phase == SAVING):
                self._counts, self._moved_s = (row.applied, row.written), self._awake()
        for score in self._scores.new_rows():
            self._view.evaluation(score)


_GOES_ON = "the same command goes on"
_AGAIN = f"{_GOES_ON} (exit code {RETRY})"


def taken(task: Task, topology: ClusterTopology) -> str:
    """Return a line on a port that another program has."""
    return (
        f"{topology.origin.field(task.type)}: '{topology.address(task)}': {task} can't listen there; usually "
        "another program does: stop that one, or name another port, the same for every task"
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process with its group, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(5.0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# The wait of a chief for the servers of all other tasks.


def gathered(
    topology: ClusterTopology, patience: RendezvousLimits, requests: StopRequests, notice: Callable[[str], None],
    *, reach: Reach = working, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> int | None:  # fmt: skip
    """Return how many workers are there, once all that is needed is; None when told to stop, or in vain."""
    addresses = {task: address for task, address in topology.addresses.items() if task != topology.leader}
    say, began_s, rest_s = RepeatedNotice(notice, clock), clock(), None
    while requests.count == 0:
        with contextlib.suppress(OSError):  # a shared folder that can't be read just now
            writing.check()  # a newer leader may have begun meanwhile
        there, now_s = reach(addresses), clock()
        missing = [task for task in addresses if task not in there]
        workers = sum(task.type == WORKER for task in there)
        only_workers = all(task.type == WORKER for task in missing)
        may_begin = only_workers and not patience.needs_all and workers >= (patience.least_workers or 1)
        rest_s = (rest_s or now_s) if may_begin else None
        if not missing:
            notice(CONNECTED("all other tasks answer"))
            return workers
        names = _names(missing, addresses)
        if rest_s is not None and (patience.least_workers is not None or now_s - rest_s >= REST_S):
            notice(f"beginning with {workers} of {workers + len(missing)} workers; {names} may come later")
            return workers
        waited_s = now_s - began_s
        if waited_s >= patience.wait_s:
            notice(f"{names} did not answer for {patience.wait_s:g} s")
            return None
        say(WAITING(f"waiting for {names} ({waited_s:.0f} of {patience.wait_s:g} s)"), missing)
        until_s = clock() + GATHER_EVERY_S
        while clock() < until_s and requests.count == 0:
            sleep(LOOK_EVERY_S)
    return None


def _names(tasks: Sequence[Task], addresses: Mapping[Task, str]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return ", ".join(f"{task} ({addresses[task]})" for task in tasks[:_NAMED]) + more
