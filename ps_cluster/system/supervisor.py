"""Start, observe and stop the processes of a run. Knows nothing of TensorFlow or of training."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import open_append
from ps_cluster.runs.rows import TaskError
from ps_cluster.system.forked_tasks import ForkedProcess
from ps_cluster.system.last_words import last_words

KILL_TIMEOUT_S = 5.0
_GROUP_POLL_S = 0.05

Popen = subprocess.Popen[bytes] | ForkedProcess


@dataclass(frozen=True)
class TaskSpec:
    """The command, environment and folder of a task, and the files for its output and its error."""

    task: Task
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    error: Path


@dataclass(frozen=True)
class TaskProcess:
    """A process that was started for a task; it leads a session and process group of its own."""

    spec: TaskSpec
    popen: Popen
    log_start: int  # bytes in the log before this process

    @property
    def task(self) -> Task:
        return self.spec.task

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    @property
    def owns_pid(self) -> bool:
        """True until `poll` has reaped the process. Until then no other process can get its pid."""
        return self.popen.returncode is None


def how_ended(exit_code: int) -> str:
    """Return "exit code 1", or the name of the signal. `exit_code`: negative if a signal ended the process."""
    return f"exit code {exit_code}" if exit_code >= 0 else signal_name(-exit_code)


@dataclass(frozen=True)
class TaskExit:
    """A task that ended without being stopped by the supervisor."""

    task: Task
    pid: int
    exit_code: int  # negative: killed by that signal
    log: Path
    last_line: str  # the error that the task wrote to its error file, else the line of its log that says why it ended
    time: float  # unix s, from the task's own error; 0 for a task that could not write one
    user_error: bool
    final: bool = False  # the task says that a restart would fail the same way
    computation: bool = False  # the user's own computation failed, which it does each time

    @property
    def how(self) -> str:
        return how_ended(self.exit_code)

    def __str__(self) -> str:
        killed = self.exit_code < 0 and not self.time  # then its last line, often progress, is not the reason
        meaning = ", its last line: " if killed and self.last_line else ": "
        last_words = f"{meaning}{self.last_line or 'no output'}"
        return f"{self.task} (pid {self.pid}) ended with {self.how}{last_words} (log: {self.log})"


class Supervisor:
    """The live processes of one run. Functions that act on the machine are passed in, so tests can replace them.

    Attributes:
      ended: task → how its newest process ended, as `poll` has reported it, or "stopped" if the supervisor stopped it.
    """

    def __init__(
        self,
        *,
        popen: Callable[..., Popen] = subprocess.Popen,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        signal_group: Callable[[int, int], None] = os.killpg,
        group_members: Callable[[int], list[int]] | None = None,
    ):
        self._popen = popen
        self._clock = clock
        self._sleep = sleep
        self._signal_group = signal_group
        self._group_members = group_members or group_members_on_this_machine
        self._processes: dict[Task, TaskProcess] = {}
        self.ended: dict[Task, str] = {}
        self._gone: set[Task] = set()  # tasks whose process group is empty; its id may be another's by now

    @property
    def processes(self) -> tuple[TaskProcess, ...]:
        """The newest process of each task, running or not."""
        return tuple(self._processes.values())

    def start(self, spec: TaskSpec) -> TaskProcess:
        """Start a task, whose earlier process must have ended. Raises OSError if the machine refuses."""
        spec.error.unlink(missing_ok=True)
        with open_append(spec.log) as log:
            log_start = log.tell()
            popen = self._popen(
                list(spec.argv),
                env=dict(spec.env),
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[spec.task] = process = TaskProcess(spec, popen, log_start)
        self.ended.pop(spec.task, None)
        self._gone.discard(spec.task)
        return process

    def poll(self) -> list[TaskExit]:
        """Return the tasks that ended since the last call, earliest failure first. Changes no process."""
        exits = []
        for process in self.processes:
            if process.task not in self.ended and (code := process.popen.poll()) is not None:
                self._is_there(process)  # notes empty groups now, before their ids can be another's
                exits.append(_exit_of(process, code))
                self.ended[process.task] = exits[-1].how
        # A killed task could write no time (0): it comes first, as the likely cause of the others' errors.
        return sorted(exits, key=lambda task_exit: task_exit.time)

    def forget(self, task: Task) -> None:
        """Forget a task that has ended and was reported. The system may give its pid to another process."""
        del self._processes[task], self.ended[task]
        self._gone.discard(task)

    def frozen(self) -> list[Task]:
        """Return the tasks whose process is stopped (SIGSTOP)."""
        return [process.task for process in self.processes if process.running and is_stopped(process.pid)]

    def signal(self, task: Task, number: int) -> None:
        """Send a signal to a task's process group, if there is one."""
        if task not in self._gone:
            with contextlib.suppress(ProcessLookupError):
                self._signal_group(self._processes[task].pid, number)

    def stop(self, tasks: Iterable[Task], grace_s: float) -> list[TaskProcess]:
        """Send SIGTERM to the groups of `tasks`, and SIGKILL to what is left after `grace_s` seconds.

        `poll` does not report them any more. Return the tasks that still have processes; usually none.
        """
        left = [self._processes[task] for task in tasks if task in self._processes]
        for process in left:
            self.ended.setdefault(process.task, "stopped")
        deadline = self._clock() + grace_s
        for number, until in ((signal.SIGTERM, deadline), (signal.SIGKILL, deadline + KILL_TIMEOUT_S)):
            left = [process for process in left if self._is_there(process)]
            for process in left:
                self.signal(process.task, number)
            while left and self._clock() < until:
                self._sleep(_GROUP_POLL_S)
                left = [process for process in left if self._is_there(process)]
        return left

    def stop_all(self, grace_s: float) -> list[TaskProcess]:
        """Stop every task; see `stop`."""
        return self.stop(list(self._processes), grace_s)

    def _is_there(self, process: TaskProcess) -> bool:
        if process.task in self._gone:
            return False
        if process.running or self._group_members(process.pid):
            return True
        self._gone.add(process.task)
        return False


def group_members_on_this_machine(group: int) -> list[int]:
    """Return the pids in a process group, without zombies."""
    members = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def is_stopped(pid: int) -> bool:
    """Return whether a process is frozen (SIGSTOP)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def _exit_of(process: TaskProcess, exit_code: int) -> TaskExit:
    spec, error = process.spec, TaskError()
    with contextlib.suppress(FileNotFoundError, UserError):  # without it, or where it can't be read, its log remains
        error = read_json(spec.error, TaskError)
    return TaskExit(
        task=process.task,
        pid=process.pid,
        exit_code=exit_code,
        log=spec.log,
        last_line=one_line(error.message) or last_words(spec.log, process.log_start, exit_code),
        time=error.time,
        user_error=error.user_error,
        final=error.final,
        computation=error.computation,
    )


def signal_name(number: int) -> str:
    """Return the name of a signal, e.g. "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
