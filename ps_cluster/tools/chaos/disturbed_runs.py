"""Runs that are disturbed: one of this machine, as `ps-cluster run` starts it, and one whose tasks are on hosts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.config.tasks import EVALUATOR, WORKER, Task
from ps_cluster.config.user_layers import without_variables
from ps_cluster.errors import BAD_INPUT, FAILED, SUPERSEDED
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail, last_row
from ps_cluster.files.writing import open_append
from ps_cluster.installation import finding_this_package
from ps_cluster.launch.rules import RestartPolicy
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.process_variables import CALLER_PID
from ps_cluster.runs import checkpoints
from ps_cluster.runs.result_rows import ProgressRow, Summary, TrainingResult, with_work
from ps_cluster.runs.rows import ClusterFile
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.lifetime import die_with_parent
from ps_cluster.system.run_processes import belongs, state_of
from ps_cluster.system.supervisor import is_stopped
from ps_cluster.tools.chaos.hosts import Host, take_mounts_of_its_own

STOP_S = 20.0  # seconds from the second SIGINT to SIGKILL
GONE_S = 10.0  # seconds from the end of a launcher to that of its last process
FIRST_PORT = 2222
OF_RUN = "CHAOS_RUN"  # environment variable of all processes of a disturbed run: its directory

_LOOK_EVERY_S = 0.1


class TrainingRun:
    """A run in a session of its own: a Ctrl-C of the terminal reaches it only through this program.

    It ends when this program ends, for whatever reason.

    Attributes:
      files: those of the run.
      tools: folder of what faults need.
      resumes: number of resumes. restarts: of each task, by launchers that have ended.
    """

    def __init__(
        self,
        root: Path,
        output: Path,
        options: Sequence[str] | None,
        *,
        tools: Path,
        environment: Mapping[str, str] | None = None,
    ):
        """Start the run; if `options` is None, resume the existing one. `environment`: extra variables."""
        self.files = RunDir(Path(os.path.realpath(root)))
        self.tools = tools
        self.resumes = 0
        self.restarts: Counter[str] = Counter()
        self._output = output
        own = {OF_RUN: str(self.files.root), **(environment or {})}
        self._environment = finding_this_package(without_variables(os.environ) | own)
        self._progress = RowTail(self.files.progress, ProgressRow)
        self._start(*(("--resume",) if options is None else (*options, "--run-dir")))

    def _start(self, *options: str) -> None:
        with open_append(self._output) as file:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "ps_cluster", "run", *options, str(self.files.root)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_as_part_of_chaos,
            )

    def resume(self) -> None:
        """Resume the run after its launcher has ended."""
        self.restarts.update(self.summary()["restarts"])
        self.resumes += 1
        self._start("--resume")

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the launcher; None while it runs."""
        return self._popen.poll()

    @property
    def last_line(self) -> str:
        """Last line that the run printed."""
        return _last_line_of(self._output)

    def new_rows(self) -> list[dict[str, Any]]:
        """Return the rows of progress since the last call."""
        return [row.model_dump() for row in with_work(self.files.work, self._progress.new_rows())]

    def running(self) -> dict[Task, int]:
        """Return the pids of its running tasks: neither dead nor frozen."""
        return {task: pid for task, pid in self._tasks().items() if state_of(pid, self.files.root) == "running"}

    @property
    def leader_log(self) -> Path:
        """Log of the task that writes checkpoints and rows."""
        leader = ClusterTopology({task.type: [] for task in self._tasks()}).leader
        return self.files.log(leader.type, leader.index)

    def _tasks(self) -> dict[Task, int]:
        try:
            tasks = read_json(self.files.cluster, ClusterFile).tasks
        except FileNotFoundError:
            return {}
        return {Task(task.type, task.index): task.pid for task in tasks if task.pid}

    def summary(self) -> dict[str, Any]:
        return read_json(self.files.summary, Summary).model_dump()

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def hang_up(self) -> None:
        """Send SIGHUP, as a closing terminal does."""
        self._signal(signal.SIGHUP)

    def _signal(self, number: int) -> None:
        if self.exit_code is None:
            self._popen.send_signal(number)

    def stop(self) -> None:
        """End the run at once, in bounded time."""
        for grace_s in (1.0, STOP_S):
            self.interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace_s)
        if self.exit_code is None:
            self._popen.kill()
            self._popen.wait(STOP_S)

    def left_behind(self) -> list[str]:
        """Return the processes of an ended run that still exist GONE_S seconds later."""
        deadline = time.monotonic() + GONE_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        return [f"pid {process.pid}" for process in left]

    def _processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _is_of(process, self.files.root)]


def _is_of(process: psutil.Process, root: Path) -> bool:
    """Return whether a process was started by this run. A shell that somebody has opened in its folder was not."""
    with contextlib.suppress(psutil.Error):  # it is another user's, or has ended
        environment = process.environ()
        if OF_RUN in environment:
            return environment[OF_RUN] == str(root)
        # Tasks and their fork server write their title over their environment: nothing that others have is left there.
        return "PATH" not in environment and belongs(process, root)
    return False


def _as_part_of_chaos() -> None:
    die_with_parent()
    take_mounts_of_its_own()


def _last_line_of(output: Path) -> str:
    """Return the last line that is not empty of a file."""
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


# Start commands, and start each again when it ends, as the schedulers of clusters do.


@dataclass(frozen=True)
class Ended:
    """One end of one process of a task. An exit code below 0 is the signal that ended it, as `Popen` says it."""

    task: Task
    exit_code: int


def restarts_after(exit_code: int) -> float:
    """Return how often a task that ends with this code (errors.py) is started again."""
    if exit_code in (0, BAD_INPUT, SUPERSEDED):
        return 0
    return 3 if exit_code == FAILED else math.inf


class Restarter:
    """The processes of tasks. Nothing happens by itself: `poll` looks and starts.

    Attributes:
      ends: every end of a process, in order.
      final: exit codes of the tasks that are not started again.
      running: the newest process of each task that had not ended at the last `poll`.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        start: Callable[[Task], subprocess.Popen[bytes]],
        *,
        restarts: Callable[[int], float] = restarts_after,
        delay_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Start all `tasks` at the first `poll`.

        Args:
          restarts: as `restarts_after`.
          delay_s: seconds from an end to the next start.
        """
        self.ends: list[Ended] = []
        self.final: dict[Task, int] = {}
        self.running: dict[Task, subprocess.Popen[bytes]] = {}
        self._start = start
        self._restarts_after = restarts
        self._policy = RestartPolicy(delays_s=(delay_s,))
        self._clock = clock
        self._due = dict.fromkeys(tasks, clock())
        self._held: set[Task] = set()

    @property
    def restarts(self) -> Counter[Task]:
        """The number of restarts, by task."""
        started = Counter(ended.task for ended in self.ends)
        return Counter({task: count - (task not in self.running) for task, count in started.items()})

    def poll(self) -> list[Ended]:
        """Return the ends since the last call, and start what is due."""
        before = len(self.ends)
        for task, process in list(self.running.items()):
            if (code := process.poll()) is not None:
                self._note(task, code)
        now = self._clock()
        for task in [task for task, due in self._due.items() if due <= now and task not in self._held]:
            del self._due[task]
            self.running[task] = self._start(task)
        return self.ends[before:]

    def hold(self, tasks: Iterable[Task]) -> None:
        """Start these tasks no more until `release`: there is no host for them."""
        self._held.update(tasks)

    def release(self, tasks: Iterable[Task]) -> None:
        """Start these tasks again from the next `poll` on."""
        self._held.difference_update(tasks)

    def _note(self, task: Task, code: int) -> None:
        del self.running[task]
        self.ends.append(ended := Ended(task, code))
        delay_s = self._policy.next_delay_s(ended, self._restarts_after(code))  # each exit code is counted by itself
        if delay_s is None:
            self.final[task] = code
        else:
            self._due[task] = self._clock() + delay_s


def placed(topology: ClusterTopology, machines: Sequence[Host]) -> dict[Task, Host]:
    """Return the host of each task. The first has the run directory, and so the leader, and what all depend on.

    The other workers share the other hosts.
    """
    others = machines[1:] or machines
    apart = [task for task in topology.tasks if task.type == WORKER and task != topology.leader]
    places = {task: others[number % len(others)] for number, task in enumerate(apart)}
    return {task: places.get(task, machines[0]) for task in topology.tasks}


class HostedRun:
    """The tasks of one training on their hosts. `look` has to be called often: it restarts what has ended.

    Attributes:
      files: of the run, as the leader sees them.
      tools: folder of what faults need.
      places: the host of each task. restarter: starts them.
      unsaved: at each unexpected end of a leader, the seconds of which no state held the updates (`unsaved_seconds`).
      rolled_back: updates that rows have shown as applied and that a later leader had to apply again.
    """

    def __init__(self, root: Path, output: Path, options: Sequence[str], places: Mapping[Task, Host], tools: Path):
        """Start the run.

        Args:
          output: folder of what the tasks print.
          options: of `task`, for all tasks.
        """
        self.files = RunDir(Path(os.path.realpath(root)))
        self.tools = tools
        self.places = dict(places)
        self.restarter = Restarter(places, self._start)
        self.unsaved: list[float] = []
        self.rolled_back = 0
        self._applied = 0
        self._output = output
        self._options = tuple(options)
        # Type → "host:port" of each member, with another port for each task.
        self._cluster: dict[str, list[str]] = {}
        for number, (task, host) in enumerate(places.items()):
            if task.type != EVALUATOR:
                self._cluster.setdefault(task.type, []).append(f"{host.name}:{FIRST_PORT + number}")
        self._leader = ClusterTopology(self._cluster).leader
        self._progress = RowTail(self.files.progress, ProgressRow)
        self._began = time.monotonic()

    def look(self) -> None:
        """Restart the tasks that have ended."""
        for ended in self.restarter.poll():
            if ended.task == self._leader and ended.exit_code:
                self.unsaved.append(unsaved_seconds(self.files, self._began, time.monotonic()))

    @property
    def pid(self) -> int:
        """Process id of the leader; that of this program while there is none."""
        return self.running().get(self._leader, os.getpid())

    @property
    def exit_code(self) -> int | None:
        """Exit code of a task that is not started again: of the leader, or of one that failed. None while there is none."""
        final = self.restarter.final
        return next((code for code in final.values() if code), final.get(self._leader))

    @property
    def last_line(self) -> str:
        """Last line that a task with this exit code printed."""
        task = next((task for task, code in self.restarter.final.items() if code), self._leader)
        return f"{task}: {_last_line_of(self._output_of(task))}"

    def _output_of(self, task: Task) -> Path:
        return self._output / f"{task}.out"

    def new_rows(self) -> list[dict[str, Any]]:
        """Return the rows of progress since the last call."""
        rows = list(with_work(self.files.work, self._progress.new_rows()))
        for row in rows:
            self.rolled_back += max(0, self._applied - row.applied)
            self._applied = row.applied
        return [row.model_dump() for row in rows]

    def running(self) -> dict[Task, int]:
        """Return the pids of the running tasks: neither ended nor frozen."""
        return {task: process.pid for task, process in self.restarter.running.items() if not is_stopped(process.pid)}

    def interrupt(self) -> None:
        """Send SIGINT to the leader: it drains the training."""
        if process := self.restarter.running.get(self._leader):
            os.kill(process.pid, signal.SIGINT)

    def result(self) -> TrainingResult:
        """Return what the leader says of the training, and what was rolled back, which only the rows know."""
        self.new_rows()
        said = read_json(self.files.training_result, TrainingResult)
        return said.model_copy(update={"updates": said.updates.model_copy(update={"rolled_back": self.rolled_back})})

    def still_running(self, within_s: float) -> list[str]:
        """Return the tasks that have not ended after some seconds; usually none."""
        deadline = time.monotonic() + within_s
        while (left := self.restarter.running) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
            self.look()
        return [str(task) for task in left]

    def _start(self, task: Task) -> subprocess.Popen[bytes]:
        config = {"cluster": self._cluster, "task": {"type": task.type, "index": task.index}}
        own = {"TF_CONFIG": json.dumps(config), CALLER_PID: str(os.getpid())}
        with open_append(self._output_of(task)) as file:
            return self.places[task].popen(
                [sys.executable, "-m", "ps_cluster", "task", "--run-dir", str(self.files.root), *self._options],
                env=finding_this_package(without_variables(os.environ)) | own,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


def unsaved_seconds(files: RunDir, began: float, now: float) -> float:
    """Return the seconds since the last update that the newest state holds; since `began` where there is no state.

    That update may be much older than its file: a leader goes on saving while nothing is applied. The time to the next
    update is lost with it, so the age of the file would be too little.

    Args:
      began: of the run. now: monotonic s too.
    """
    state = checkpoints.load_newest_good(files.states, lambda damaged: None)
    row = last_row(files.progress, ProgressRow)
    if state is None or state.meta.times is None or row is None:
        return now - began
    return now - row.monotonic + row.times.seconds - (state.meta.times.last_update or 0.0)


Run = TrainingRun | HostedRun
