"""Run the tasks of a training on simulated hosts, and restart tasks that fail, as cluster schedulers do."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ps_cluster.config.tasks import EVALUATOR, WORKER, Task
from ps_cluster.config.user_settings import without_variables
from ps_cluster.errors import FAILED, NEVER_RETRY
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail, last_row
from ps_cluster.files.writing import open_append
from ps_cluster.installation import environment_with_package
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.process_variables import CALLER_PID, TF_CONFIG
from ps_cluster.runs import checkpoints
from ps_cluster.runs.result_rows import ProgressRow, TrainingResult, with_work
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.child_process import is_stopped
from ps_cluster.tools.chaos.hosts import Host
from ps_cluster.tools.chaos.launched_run import last_line_of

FIRST_PORT = 2222
RESTART_DELAY_S = 1.0  # from the end of a task to its next start
_POLL_INTERVAL_S = 0.1


def assign_hosts(topology: ClusterTopology, machines: Sequence[Host]) -> dict[Task, Host]:
    """Return the host of each task.

    The first host has the run directory, the leader (the chief or, without a chief, worker 0) and all tasks that are
    not workers. The remaining workers are spread over the other hosts.
    """
    others = machines[1:] or machines
    apart = [task for task in topology.tasks if task.type == WORKER and task != topology.leader]
    places = {task: others[number % len(others)] for number, task in enumerate(apart)}
    return {task: places.get(task, machines[0]) for task in topology.tasks}


def restarts_after(exit_code: int) -> float:
    """Return how often a task may be restarted because it ended with this exit code (see errors.py); inf: no limit."""
    if exit_code in (0, *NEVER_RETRY):
        return 0
    return 3 if exit_code == FAILED else math.inf


class Restarter:
    """A supervisor that starts tasks, and restarts tasks that have ended. Both happen only in `poll`."""

    def __init__(
        self,
        tasks: Iterable[Task],
        start: Callable[[Task], subprocess.Popen[bytes]],
        clock: Callable[[], float] = time.monotonic,
    ):
        """Create a supervisor whose first `poll` starts all `tasks`."""
        self.restarts: dict[Task, int] = {}  # how often each task was started again
        self.final: dict[Task, int] = {}  # the exit codes of the tasks that are not started again
        self.running: dict[Task, subprocess.Popen[bytes]] = {}  # the tasks that had not ended at the last `poll`
        self.held: set[Task] = set()  # the tasks that are not started as long as they are in this set
        self._start = start
        self._clock = clock
        self._due = dict.fromkeys(tasks, clock())
        self._ends: Counter[tuple[Task, int]] = Counter()

    def poll(self) -> list[tuple[Task, int]]:
        """Start the tasks that are due. Return the tasks that have ended since the last call, with their exit codes.

        As in `Popen`, an exit code below 0 is the signal that ended the process.
        """
        ended = [(task, code) for task, process in self.running.items() if (code := process.poll()) is not None]
        for task, code in ended:
            del self.running[task]
            self._ends[task, code] += 1
            if self._ends[task, code] > restarts_after(code):
                self.final[task] = code
            else:
                self._due[task] = self._clock() + RESTART_DELAY_S
        for task in [task for task, due in self._due.items() if due <= self._clock() and task not in self.held]:
            del self._due[task]
            self.running[task] = self._start(task)
            self.restarts[task] = self.restarts.get(task, -1) + 1
        return ended


class HostedRun:
    """The tasks of one training on their hosts. Call `poll` often: it restarts the tasks that have ended."""

    def __init__(self, root: Path, output: Path, options: Sequence[str], places: Mapping[Task, Host], tools: Path):
        """Create a run, which the first `poll` starts.

        Args:
          root: the run directory.
          output: the folder for files with the output of each task.
          options: the options of the command `ps-cluster task`.
          places: the host of each task.
          tools: the folder with the files that faults need.
        """
        self.files = RunDir(Path(os.path.realpath(root)))  # as the leader sees them
        self.tools = tools  # the folder with the files that faults need
        self.places = dict(places)
        self.restarter = Restarter(places, self._start)
        self.unsaved: list[float] = []  # the `unsaved_seconds` at each unexpected end of a leader
        self._applied, self._rolled_back = 0, 0  # the updates of the last row, and those rolled back so far
        self._output = output
        self._options = tuple(options)
        cluster: dict[str, list[str]] = {}
        for number, (task, host) in enumerate(places.items()):
            if task.type != EVALUATOR:
                cluster.setdefault(task.type, []).append(f"{host.name}:{FIRST_PORT + number}")
        self._topology = ClusterTopology(cluster)
        self._leader = self._topology.leader
        self._progress = RowTail(self.files.progress, ProgressRow)
        self._began = time.monotonic()

    def poll(self) -> None:
        """Start the tasks at the first call. Later, restart the tasks that have ended."""
        for task, code in self.restarter.poll():
            if task == self._leader and code:
                self.unsaved.append(unsaved_seconds(self.files, self._began, time.monotonic()))

    @property
    def pid(self) -> int:
        """Process id of the leader; while there is no leader, the process id of this program."""
        return self.running().get(self._leader, os.getpid())

    @property
    def exit_code(self) -> int | None:
        """Exit code of the run; None while the run lasts.

        The run fails with the exit code of the first failed task that is not restarted. Its exit code is 0 as soon as
        the leader has ended with 0.
        """
        final = self.restarter.final
        return next((code for code in final.values() if code), final.get(self._leader))

    @property
    def last_line(self) -> str:
        """The name of the task whose exit code is `exit_code`, and the last line of its output."""
        task = next((task for task, code in self.restarter.final.items() if code), self._leader)
        return f"{task}: {last_line_of(self._output_of(task))}"

    def _output_of(self, task: Task) -> Path:
        return self._output / f"{task}.out"

    def new_rows(self) -> Sequence[ProgressRow]:
        """Return the progress rows since the last call."""
        rows = with_work(self.files.work, self._progress.new_rows())
        for row in rows:
            self._rolled_back += max(0, self._applied - row.applied)
            self._applied = row.applied
        return rows

    def running(self) -> dict[Task, int]:
        """Return the pid of each task that has not ended and is not frozen."""
        return {task: process.pid for task, process in self.restarter.running.items() if not is_stopped(process.pid)}

    def interrupt(self) -> None:
        """Send SIGINT to the leader, which then drains the training."""
        if process := self.restarter.running.get(self._leader):
            os.kill(process.pid, signal.SIGINT)

    def result(self) -> TrainingResult:
        """Return the result that the leader wrote, and add to it the number of updates that were rolled back.

        The leader's file does not contain this number. It is computed from the rows of metrics/progress.jsonl.
        """
        self.new_rows()
        said = read_json(self.files.training_result, TrainingResult)
        return said.model_copy(update={"updates": said.updates.model_copy(update={"rolled_back": self._rolled_back})})

    def still_running(self, within_s: float) -> list[str]:
        """Wait up to `within_s` seconds for all tasks to end. Return the tasks that have not ended, usually none."""
        deadline = time.monotonic() + within_s
        while (left := self.restarter.running) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
            self.poll()
        return [str(task) for task in left]

    def _start(self, task: Task) -> subprocess.Popen[bytes]:
        own = {TF_CONFIG: self._topology.tf_config(task), CALLER_PID: str(os.getpid())}
        with open_append(self._output_of(task)) as file:
            return self.places[task].popen(
                [sys.executable, "-m", "ps_cluster", "task", "--run-dir", str(self.files.root), *self._options],
                env=environment_with_package(without_variables(os.environ)) | own,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


def unsaved_seconds(files: RunDir, began: float, now: float) -> float:
    """Return the seconds from the last update in the newest saved state to `now`.

    If there is no saved state, return the seconds from `began`, the start of the run. `began` and `now` are in
    monotonic seconds. The time at which the state was saved does not matter, because a leader also saves while no
    update is applied.
    """
    state = checkpoints.load_newest_good(files.states, lambda damaged: None)
    row = last_row(files.progress, ProgressRow)
    if state is None or state.meta.times is None or row is None:
        return now - began
    return now - row.monotonic + row.times.seconds - (state.meta.times.last_update or 0.0)
