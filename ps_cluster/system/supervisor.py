"""Supervise the processes of a run: start each task, report how it ended, and stop it. Knows nothing of training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import open_append
from ps_cluster.runs.logs import with_log
from ps_cluster.runs.rows import TaskError
from ps_cluster.system.child_process import ChildProcess, ProcessCalls, StartedProcess, Starter, how_ended, stop_all
from ps_cluster.system.failure_lines import failure_line
from ps_cluster.system.private_network import RunNetwork


@dataclass(frozen=True)
class TaskSpec:
    """The command, environment and folder of a task, and the files for its output and its error.

    `forks`: whether the process is a fork of a process that has imported TensorFlow (forked_tasks.py).
    """

    task: Task
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    error: Path
    forks: bool = False


@dataclass(frozen=True)
class TaskProcess:
    """A process that was started for a task."""

    spec: TaskSpec
    child: ChildProcess
    log_start: int  # bytes in the log before this process

    @property
    def task(self) -> Task:
        return self.spec.task

    @property
    def pid(self) -> int:
        return self.child.pid


@dataclass(frozen=True)
class TaskExit:
    """A task that ended without being stopped by the supervisor, or that the machine refused to start (`pid` is None)."""

    task: Task
    pid: int | None
    exit_code: int  # negative: killed by that signal
    log: Path
    last_line: str  # the error that the task wrote to its error file, else the line of its log that says why it ended
    error: TaskError = TaskError()  # as the task wrote it; empty (time 0) if it could not write one

    @property
    def how_ended(self) -> str:
        return how_ended(self.exit_code)

    def __str__(self) -> str:
        if self.pid is None:
            return with_log(f"{self.task} could not be started: {self.last_line}", self.log)
        # The last line of a killed task is often a progress row, and not the reason.
        killed = self.exit_code < 0 and not self.error.time
        meaning = ", its last line: " if killed and self.last_line else ": "
        why = f"{meaning}{self.last_line or 'no output'}"
        return with_log(f"{self.task} (pid {self.pid}) ended with {self.how_ended}{why}", self.log)


class Supervisor:
    """Starts, watches and stops the processes of tasks. It remembers only the newest process of each task.

    It does not restart tasks. `poll` reports tasks that have ended, and the caller may call `start` again.

    `ended`: task → how its newest process ended, e.g. "exit code 1" or "stopped". `poll` and `stop` add a task, and
    `start` and `forget` remove it.
    """

    def __init__(
        self,
        *,
        popen: Starter[StartedProcess] = RunNetwork().popen,
        fork: Starter[StartedProcess] | None = None,
        calls: ProcessCalls = ProcessCalls(),
    ):
        """Create a supervisor without processes.

        `fork` starts the tasks for which `TaskSpec.forks` is True, and `popen` starts the others. If `fork` is None,
        `popen` starts all tasks.
        """
        self._popen = popen
        self._fork = fork or popen
        self._calls = calls
        self._processes: dict[Task, TaskProcess] = {}
        self.ended: dict[Task, str] = {}

    @property
    def processes(self) -> tuple[TaskProcess, ...]:
        """The newest process of each task, running or not."""
        return tuple(self._processes.values())

    def start(self, spec: TaskSpec) -> TaskProcess:
        """Start a task, whose earlier process must have ended. Raises OSError if the machine refuses."""
        spec.error.unlink(missing_ok=True)
        popen = self._fork if spec.forks else self._popen
        with open_append(spec.log) as log:
            log_start = log.tell()
            child = ChildProcess.start(
                spec.argv, env=spec.env, cwd=spec.cwd, output=log, popen=popen, calls=self._calls
            )
        self._processes[spec.task] = process = TaskProcess(spec, child, log_start)
        self.ended.pop(spec.task, None)
        return process

    def poll(self) -> list[TaskExit]:
        """Return the tasks that ended since the last call, the earliest failure first. Starts and stops no process."""
        exits = []
        for process in self.processes:
            if process.task not in self.ended and (code := process.child.exit_code) is not None:
                process.child.is_there()  # records an empty group now, before its id can become that of another group
                exits.append(_exit_of(process, code))
                self.ended[process.task] = exits[-1].how_ended
        # A killed task could not write its time (0). It comes first, as the likely cause of the other tasks' errors.
        return sorted(exits, key=lambda task_exit: task_exit.error.time)

    def forget(self, task: Task) -> None:
        """Forget a task that has ended and was reported. The system may give its pid to another process."""
        del self._processes[task], self.ended[task]

    def frozen(self) -> list[Task]:
        return [process.task for process in self.processes if process.child.is_frozen]

    def signal(self, task: Task, number: int) -> None:
        self._processes[task].child.signal(number)

    def stop(self, tasks: Iterable[Task], grace_s: float) -> list[TaskProcess]:
        """Send SIGTERM to the groups of `tasks`, and SIGKILL to the processes that are left after `grace_s` seconds.

        `poll` does not report that these tasks have ended. Return those that still have processes (usually none).
        """
        processes = [self._processes[task] for task in tasks if task in self._processes]
        for process in processes:
            self.ended.setdefault(process.task, "stopped")
        left = stop_all([process.child for process in processes], grace_s, self._calls)
        return [process for process in processes if process.child in left]

    def stop_all(self, grace_s: float) -> list[TaskProcess]:
        return self.stop(list(self._processes), grace_s)


def _exit_of(process: TaskProcess, exit_code: int) -> TaskExit:
    spec, error = process.spec, TaskError()
    with contextlib.suppress(FileNotFoundError, UserError):  # if it is missing or can't be read, the log remains
        error = read_json(spec.error, TaskError)
    line = one_line(error.message) or failure_line(spec.log, process.log_start, exit_code)
    return TaskExit(process.task, process.pid, exit_code, spec.log, line, error)
