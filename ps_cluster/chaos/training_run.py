"""`python cli.py run …` as a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.cluster.lifeline import die_with_parent
from ps_cluster.cluster.topology import Task
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail
from ps_cluster.rows.cluster import ClusterFile
from ps_cluster.rows.progress import ProgressRow
from ps_cluster.rows.summary import Summary
from ps_cluster.run_dir import RunDir

CLI = Path(__file__).resolve().parents[2] / "cli.py"
STOP_S = 20.0  # from the second SIGINT to SIGKILL
GONE_S = 10.0  # from the end of a launcher to that of its last process

_LOOK_EVERY_S = 0.1


class TrainingRun:
    """A run in a session of its own, so that a Ctrl-C of the terminal reaches it only through the program above it.

    It ends with that program, however that one ends.
    """

    def __init__(self, root: Path, output: Path, options: Sequence[str] | None):
        """Starts it; `options` None goes on with the run that is there."""
        self.root = root.resolve()
        self._run_dir = RunDir(self.root)
        self._output = output
        self._progress = RowTail(self._run_dir.progress, ProgressRow)
        what = ("--resume", str(self.root)) if options is None else ("--run-dir", str(self.root), *options)
        with output.open("ab") as file:
            self._popen = subprocess.Popen(
                [sys.executable, str(CLI), "run", *what],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    @property
    def last_line(self) -> str:
        """The last line that it printed."""
        lines = self._output.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")

    def new_rows(self) -> list[dict[str, Any]]:
        """The rows of progress since the last call."""
        return [row.model_dump() for row in self._progress.new_rows()]

    def running(self) -> dict[Task, int]:
        """The pids of its tasks, of those that run: not dead, not frozen."""
        try:
            tasks = read_json(self._run_dir.cluster, ClusterFile).tasks
        except FileNotFoundError:
            return {}
        return {Task(task.type, task.index): task.pid for task in tasks if self._runs(task.pid)}

    def summary(self) -> dict[str, Any]:
        return read_json(self._run_dir.summary, Summary).model_dump()

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        if self.exit_code is None:
            self._popen.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Ends it at once, in bounded time."""
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
        """The processes of an ended run that are there after GONE_S seconds nevertheless."""
        deadline = time.monotonic() + GONE_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        return [f"pid {process.pid}" for process in left]

    def _processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if process.pid != os.getpid() and self._owns(process)]

    def _runs(self, pid: int) -> bool:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            return process.status() != psutil.STATUS_STOPPED and self._owns(process)
        return False

    def _owns(self, process: psutil.Process) -> bool:
        """A pid may have become another program's: only what names this run or works in it is touched."""
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return str(self.root) in process.cmdline() or self.root in Path(process.cwd()).parents
        return False
