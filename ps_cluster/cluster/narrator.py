"""Tell at the terminal of a task started by hand what it waits for and how far training is. No TensorFlow."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from ps_cluster.catalogue.task_types import Task
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.files.json_rows import RowTail
from ps_cluster.reporting.progress import ProgressView
from ps_cluster.run.rows.progress import ProgressRow
from ps_cluster.run.rows.scores import EvaluationRow
from ps_cluster.run.run_dir import RunDir

LOOK_EVERY_S = 1.0
PROBE_S = 1.0  # for one address
PROBES_AT_ONCE = 20  # in one look: each that doesn't answer takes PROBE_S
_NAMED = 3


def answers(address: str) -> bool:
    """Return whether somebody listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except OSError:
        return False
    return True


class Narrator:
    """Prints news from the other tasks' addresses and from this task's rows, once a second, in its own thread."""

    def __init__(
        self, task: Task, topology: ClusterTopology, run_dir: RunDir, view: ProgressView,
        *, reaches: Callable[[str], bool] = answers,
    ):  # fmt: skip
        self._task = task
        self._topology = topology
        self._leads = task == topology.leader
        self._view = view
        self._reaches = reaches
        self._missing = [other for other in topology.tasks if other != task] if self._leads else [topology.leader]
        self._said: list[Task] | None = None
        self._progress = RowTail(run_dir.progress, ProgressRow)
        self._scores = RowTail(run_dir.evaluation, EvaluationRow)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="narrator", daemon=True)

    def start(self) -> None:
        """Print this task's name and address, and start the thread."""
        address = self._topology.address(self._task)
        self._view.notice(f"{self._task}{f' at {address}' if address else ''}")
        self._progress.skip()  # rows from before a resume
        self._scores.skip()
        self._thread.start()

    def end(self) -> None:
        """Stop the thread and print what is still unread."""
        self._over.set()
        self._thread.join(2 * PROBES_AT_ONCE * PROBE_S)
        if self._leads:
            self._read_rows()
            self._view.close()

    def _run(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(LOOK_EVERY_S)

    def look(self) -> None:
        """Look once, and print what is new."""
        if self._leads:
            self._look_for_all()
            self._read_rows()
        elif self._task.type in self._topology.types:
            self._look_for_leader()

    def _look_for_all(self) -> None:
        """Look for the tasks that have not answered yet. A later death is the coordinator's business."""
        if not self._missing:
            return
        some, others = self._missing[:PROBES_AT_ONCE], self._missing[PROBES_AT_ONCE:]
        silent = []
        for task in some:
            if self._over.is_set():  # else the end of this task would wait for the remaining probes
                return
            if not self._answers(task):
                silent.append(task)
        self._missing = others + silent
        if not self._missing:
            self._view.notice("all other tasks answer")
        elif sorted(self._missing) != self._said:
            self._said = sorted(self._missing)
            self._view.notice(f"waiting for {self._names(self._said)}")

    def _look_for_leader(self) -> None:
        leader = self._topology.leader
        missing = [] if self._answers(leader) else [leader]
        if missing == self._said:
            return
        if not missing:
            until = f"training, until {leader} ends or this is stopped"
            self._view.notice(f"connected: {self._names([leader])} answers; {until}")
        elif self._said is None:
            self._view.notice(f"waiting for {self._names(missing)}")
        else:
            self._view.notice(f"{leader} has ended; waiting for it to be started again, or to be stopped (Ctrl-C)")
        self._said = missing

    def _answers(self, task: Task) -> bool:
        address = self._topology.address(task)
        return address is not None and self._reaches(address)

    def _names(self, tasks: list[Task]) -> str:
        more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
        return ", ".join(f"{task} ({self._topology.address(task)})" for task in tasks[:_NAMED]) + more

    def _read_rows(self) -> None:
        for row in self._progress.new_rows():
            self._view.progress(row.model_dump())
        for score in self._scores.new_rows():
            self._view.evaluation(score)
