"""A training whose tasks run on hosts, each started by `ps-cluster task` and restarted when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ps_cluster.catalogue.task_types import EVALUATOR, WORKER, Task
from ps_cluster.chaos.restarter import Ended, Restarter
from ps_cluster.chaos.training_run import last_line_of
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.config.user_layers import without_variables
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import RowTail, last_row
from ps_cluster.files.writing import open_append
from ps_cluster.hosts.host import Host
from ps_cluster.installation import finding_this_package
from ps_cluster.processes.lifeline import CALLER_PID
from ps_cluster.processes.supervisor import is_stopped
from ps_cluster.run import checkpoints
from ps_cluster.run.rows.progress import ProgressRow, with_work
from ps_cluster.run.rows.training import TrainingResult
from ps_cluster.run.run_dir import RunDir

FIRST_PORT = 2222


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
      ages: at each unexpected end of a leader, the seconds since it last saved, or since the run began.
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
        self.ages: list[float] = []
        self.rolled_back = 0
        self._applied = 0
        self._output = output
        self._options = tuple(options)
        self._places = dict(places)
        self._cluster = _addresses(places)
        self._leader = ClusterTopology(self._cluster).leader
        self._progress = RowTail(self.files.progress, ProgressRow)
        self._restarter = Restarter(places, self._start)
        self._ends_seen = 0
        self._began = time.time()

    def look(self) -> None:
        """Restart the tasks that have ended."""
        self._restarter.poll()
        for ended in self._restarter.ends[self._ends_seen :]:
            if ended.task == self._leader and ended.exit_code:
                self.ages.append(self._since_last_save())
        self._ends_seen = len(self._restarter.ends)

    @property
    def pid(self) -> int:
        """Process id of the leader; that of this program while there is none."""
        return self.running().get(self._leader, os.getpid())

    @property
    def exit_code(self) -> int | None:
        """Exit code of a task that is not started again: of the leader, or of one that failed. None while there is none."""
        final = self._restarter.final
        failed = [code for code in final.values() if code]
        return failed[0] if failed else final.get(self._leader)

    @property
    def last_line(self) -> str:
        """Last line that a task with this exit code printed."""
        task = next((task for task, code in self._restarter.final.items() if code), self._leader)
        return f"{task}: {last_line_of(self.output_of(task))}"

    @property
    def leader_log(self) -> Path:
        return self.output_of(self._leader)

    @property
    def ends(self) -> Sequence[Ended]:
        """Every end of a process so far."""
        return tuple(self._restarter.ends)

    @property
    def restarts(self) -> dict[str, int]:
        return {str(task): count for task, count in sorted(self._restarter.restarts.items())}

    def output_of(self, task: Task) -> Path:
        """Return the file of what a task printed."""
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
        return {task: process.pid for task, process in self._restarter.running.items() if not is_stopped(process.pid)}

    def host_of(self, task: Task) -> Host:
        return self._places[task]

    def tasks_on(self, host: Host) -> list[Task]:
        return [task for task, place in self._places.items() if place is host]

    def hold(self, tasks: Sequence[Task]) -> None:
        """Restart these tasks no more until `release`: there is no host for them."""
        self._restarter.hold(tasks)

    def release(self, tasks: Sequence[Task]) -> None:
        self._restarter.release(tasks)

    def interrupt(self) -> None:
        """Send SIGINT to the leader: it drains the training."""
        self._signal(signal.SIGINT)

    def hang_up(self) -> None:
        """Send SIGHUP to the leader."""
        self._signal(signal.SIGHUP)

    def resume(self) -> None:
        """Start the tasks that have ended again."""
        self._restarter.start_anew()

    def result(self) -> TrainingResult:
        """Return what the leader says of the training, and what was rolled back, which only the rows know."""
        self.new_rows()
        said = read_json(self.files.training_result, TrainingResult)
        return said.model_copy(update={"updates": said.updates.model_copy(update={"rolled_back": self.rolled_back})})

    def still_running(self, within_s: float) -> list[str]:
        """Return the tasks that have not ended after some seconds; usually none."""
        deadline = time.monotonic() + within_s
        while (left := self._restarter.running) and time.monotonic() < deadline:
            time.sleep(0.1)
            self.look()
        return [str(task) for task in left]

    def _signal(self, number: int) -> None:
        if process := self._restarter.running.get(self._leader):
            os.kill(process.pid, number)

    def _since_last_save(self) -> float:
        """Return the age of what the newest state holds: it is older than its file by the time that the save took."""
        saved = [path.stat().st_mtime for path in checkpoints.newest_first(self.files.states)[:1]]
        row = last_row(self.files.progress, ProgressRow) if saved else None
        return time.time() - max(saved, default=self._began) + (row.save_seconds if row and row.save_seconds else 0.0)

    def _start(self, task: Task) -> subprocess.Popen[bytes]:
        config = {"cluster": self._cluster, "task": {"type": task.type, "index": task.index}}
        own = {"TF_CONFIG": json.dumps(config), CALLER_PID: str(os.getpid())}
        with open_append(self.output_of(task)) as file:
            return self._places[task].popen(
                # -P: don't import a package of this name from the current folder
                [sys.executable, "-m", "ps_cluster", "task", "--run-dir", str(self.files.root), *self._options],
                env=finding_this_package(without_variables(os.environ)) | own,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


def _addresses(places: Mapping[Task, Host]) -> dict[str, list[str]]:
    """Return type → "host:port" of each member, with another port for each task."""
    cluster: dict[str, list[str]] = {}
    for number, (task, host) in enumerate(places.items()):
        if task.type != EVALUATOR:
            cluster.setdefault(task.type, []).append(f"{host.name}:{FIRST_PORT + number}")
    return cluster
