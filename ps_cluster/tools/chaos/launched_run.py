"""Start a run on this machine with `ps-cluster run`, watch it, and end it."""

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

import psutil

from ps_cluster.config.tasks import Task, leader_type
from ps_cluster.config.user_settings import without_variables
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail
from ps_cluster.files.writing import open_append
from ps_cluster.installation import environment_with_package
from ps_cluster.runs.result_rows import ProgressRow, Summary, with_work
from ps_cluster.runs.rows import ClusterFile
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.lifetime import die_with_parent
from ps_cluster.system.run_processes import belongs, state_of
from ps_cluster.tools.chaos.namespaces import take_mounts_of_its_own

STOP_S = 20.0  # from the second SIGINT to SIGKILL
GONE_S = 10.0  # from the end of a launcher to the end of its last process
OF_RUN = "CHAOS_RUN"  # environment variable of all processes of a run: the run directory
_POLL_INTERVAL_S = 0.1


class LaunchedRun:
    """A run on this machine, started by the command `ps-cluster run`. It ends when this program ends.

    The run is in a separate session, so a Ctrl-C in the terminal reaches it only through this program.
    """

    def __init__(
        self,
        root: Path,
        output: Path,
        options: Sequence[str] | None,
        *,
        tools: Path,
        environment: Mapping[str, str] = {},
    ):
        """Start a run, or resume an existing run.

        Args:
          root: the run directory.
          output: the file to which the output of the command is appended.
          options: the options of the command `ps-cluster run`; None to resume the run in `root`.
          tools: the folder with the files that faults need.
          environment: additional environment variables.
        """
        self.files = RunDir(Path(os.path.realpath(root)))
        self.tools = tools  # the folder with the files that faults need
        self.resumes = 0
        self.restarts: Counter[str] = Counter()  # how often each task was restarted by launchers that have ended
        self._output = output
        own = {OF_RUN: str(self.files.root), **environment}
        self._environment = environment_with_package(without_variables(os.environ) | own)
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
        self.restarts.update(self.summary().restarts)
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
        return last_line_of(self._output)

    def new_rows(self) -> Sequence[ProgressRow]:
        """Return the progress rows since the last call."""
        return with_work(self.files.work, self._progress.new_rows())

    def running(self) -> dict[Task, int]:
        """Return the pids of the run's tasks that are neither dead nor frozen."""
        return {task: pid for task, pid in self._tasks().items() if state_of(pid, self.files.root) == "running"}

    @property
    def leader_log(self) -> Path:
        """Log of the task that writes checkpoints and progress rows."""
        return self.files.log(Task(leader_type({task.type for task in self._tasks()}), 0))

    def _tasks(self) -> dict[Task, int]:
        try:
            tasks = read_json(self.files.cluster, ClusterFile).tasks
        except FileNotFoundError:
            return {}
        return {row.task: row.pid for row in tasks if row.pid}

    def summary(self) -> Summary:
        return read_json(self.files.summary, Summary)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._popen.send_signal(signal.SIGINT)

    def hang_up(self) -> None:
        """Send SIGHUP, as a closing terminal does."""
        self._popen.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """Interrupt the run twice, which ends it at once. Kill the launcher if the run does not end in time."""
        for grace_s in (1.0, STOP_S):
            self.interrupt()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace_s)
        if self.exit_code is None:
            self._popen.kill()
            self._popen.wait(STOP_S)

    def left_behind(self) -> list[str]:
        """Wait up to GONE_S seconds for all processes of an ended run to end. Return those that still exist."""
        deadline = time.monotonic() + GONE_S
        while True:
            left = [process for process in psutil.process_iter() if _is_of(process, self.files.root)]
            if not left or time.monotonic() > deadline:
                return [f"pid {process.pid}" for process in left]
            time.sleep(_POLL_INTERVAL_S)


def _is_of(process: psutil.Process, root: Path) -> bool:
    """Return whether the run in `root` started `process`. A shell that a user opened in that folder does not count."""
    with contextlib.suppress(psutil.Error):  # it belongs to another user, or has ended
        environment = process.environ()
        if OF_RUN in environment:
            return environment[OF_RUN] == str(root)
        # Tasks and their fork server write their title over their environment, so they have no PATH.
        return "PATH" not in environment and belongs(process, root)
    return False


def _as_part_of_chaos() -> None:
    die_with_parent()
    take_mounts_of_its_own()


def last_line_of(output: Path) -> str:
    """Return the last non-blank line of a file."""
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
