"""Run `ps-cluster run` as a separate process and observe it from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.catalogue.task_types import Task
from ps_cluster.chaos.inside import take_mounts_of_its_own
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.config.user_layers import without_variables
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.writing import open_append
from ps_cluster.installation import finding_this_package
from ps_cluster.processes.lifeline import die_with_parent
from ps_cluster.processes.of_run import belongs, state_of
from ps_cluster.run.rows.cluster import ClusterFile
from ps_cluster.run.rows.progress import ProgressRow, with_work
from ps_cluster.run.rows.summary import Summary
from ps_cluster.run.run_dir import RunDir

STOP_S = 20.0  # seconds from the second SIGINT to SIGKILL
GONE_S = 10.0  # seconds from the end of a launcher to that of its last process

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
        self.root = Path(os.path.realpath(root))
        self.files = RunDir(self.root)
        self.tools = tools
        self.resumes = 0
        self.restarts: Counter[str] = Counter()
        self._output = output
        self._environment = finding_this_package(without_variables(os.environ) | dict(environment or {}))
        self._progress = RowTail(self.files.progress, ProgressRow)
        root_text = str(self.root)
        self._start(*(("--resume", root_text) if options is None else ("--run-dir", root_text, *options)))

    def _start(self, *options: str) -> None:
        with open_append(self._output) as file:
            self._popen = subprocess.Popen(
                # -P: don't import a package of this name from the current folder
                [sys.executable, "-m", "ps_cluster", "run", *options],
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
        self._start("--resume", str(self.root))

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
        return last_line_of(self._output)

    def new_rows(self) -> list[dict[str, Any]]:
        """Return the rows of progress since the last call."""
        return [row.model_dump() for row in with_work(self.files.work, self._progress.new_rows())]

    def running(self) -> dict[Task, int]:
        """Return the pids of its running tasks: neither dead nor frozen."""
        return {task: pid for task, pid in self._tasks().items() if self._runs(pid)}

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
        for _ in range(2):
            self.interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(1.0)
        try:
            self._popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(STOP_S)

    def left_behind(self) -> list[str]:
        """Return the processes of an ended run that still exist GONE_S seconds later."""
        deadline = time.monotonic() + GONE_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        return [f"pid {process.pid}" for process in left]

    def _processes(self) -> list[psutil.Process]:
        return [
            process for process in psutil.process_iter() if process.pid != os.getpid() and belongs(process, self.root)
        ]

    def _runs(self, pid: int) -> bool:
        return state_of(pid, self.root) == "running"


def last_line_of(output: Path) -> str:
    """Return the last line that is not empty of a file."""
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _as_part_of_chaos() -> None:
    die_with_parent()
    take_mounts_of_its_own()
