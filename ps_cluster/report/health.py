"""Find out whether a run or a task is alive and makes progress, from files and processes. Imports no TensorFlow."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ps_cluster.config.tasks import Task, leader_type
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import last_row
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import LAUNCHER
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.runs.rows import ClusterFile, TaskFile, TaskRow
from ps_cluster.runs.run_dir import TASK_FILE, RunDir
from ps_cluster.runs.training_phases import NOT_BEGUN, UNDER_WAY
from ps_cluster.system import run_processes
from ps_cluster.system.addresses import host_and_port
from ps_cluster.system.run_processes import ProcessState, age_seconds

Probe = Literal["live", "ready"]
_FIRST_WORDS: Mapping[Probe, str] = {"live": "alive", "ready": "ready"}
"""The first words of the answer to each probe."""
_CLOCK_TOLERANCE_S = 1.0  # the largest difference to expect between the clock of process starts and that of rows


@dataclass(frozen=True)
class HealthSign:
    """One finding of a probe, e.g. whether the process runs.

    `message`: the finding in words, for the line that is printed.
    """

    name: str
    good: bool
    message: str


@dataclass(frozen=True)
class Member:
    """A process to probe.

    Attributes:
      life: the unique id of the process (`life_of`); None if it is not known.
      watches_rows: whether the probe of this process also checks the progress rows. It does so for the leader, which
        writes these rows, and for the launcher, which has started the leader.
    """

    name: str
    pid: int
    address: str | None = None
    life: str | None = None
    watches_rows: bool = False


@dataclass(frozen=True)
class HealthBounds:
    """The highest ages that are healthy, in seconds.

    Attributes:
      age_s: the highest age of the last progress row, and of the last update.
      save_s: the highest age of the newest checkpoint or snapshot, or None if any age is healthy.
    """

    age_s: float
    save_s: float | None = None


@dataclass(frozen=True)
class Surroundings:
    """The functions that query the machine. Tests replace these functions."""

    state: Callable[[int, Path, str | None], ProcessState] = run_processes.state_of
    listens: Callable[[int, int], bool] = run_processes.listens
    age_s: Callable[[int], float] = age_seconds
    wall: Callable[[], float] = time.time
    host: str = socket.gethostname()


@dataclass(frozen=True)
class HealthFacts:
    """Everything that a probe looks at. `row`: the newest progress row; None if there is none."""

    run_dir: RunDir
    bounds: HealthBounds
    machine: Surroundings
    row: ProgressRow | None

    def signs(self, member: Member, probe: Probe) -> Iterator[HealthSign]:
        """Yield the findings about a process. If the process is gone or stopped, nothing else about it is checked."""
        state = self.machine.state(member.pid, self.run_dir.root, member.life)
        yield HealthSign("process", state == "running", f"{member.name} (pid {member.pid}) is {state}")
        if state != "running":
            return
        if member.address is not None and not member.watches_rows:  # a leader opens its port when it connects
            _, port = host_and_port(member.address)
            good = self.machine.listens(member.pid, port)
            yield HealthSign("port", good, f"port {port} is open" if good else f"nothing listens at port {port}")
        if not member.watches_rows:
            return
        row = self._row_of(member)
        if row is not None and row.phase in UNDER_WAY:  # in these phases, a row is written every half second
            age_s = self._age_s(row.time)
            message = f"the last sign of life of the leader is {age_s:.1f} s old"
            yield _bounded("rows", message, age_s, self.bounds.age_s, "--max-age")
        if probe == "ready":
            yield self._training(row)
            if self.row is not None and self.row.phase in UNDER_WAY:
                yield self._saved()

    def _row_of(self, member: Member) -> ProgressRow | None:
        """Return the newest row if it was written after the process of `member` started; otherwise None."""
        began = self.machine.wall() - self.machine.age_s(member.pid)
        return self.row if self.row is not None and self.row.time >= began - _CLOCK_TOLERANCE_S else None

    def _age_s(self, at: float) -> float:
        return max(0.0, self.machine.wall() - at)

    def _training(self, row: ProgressRow | None) -> HealthSign:
        """Return whether training has begun and makes progress. `row`: as returned by `_row_of`."""
        if row is None or row.phase in NOT_BEGUN:
            newest = self.row.phase if self.row else "no progress yet"
            return HealthSign("training", False, f"training has not begun: {newest}")
        if row.phase not in UNDER_WAY:
            return HealthSign("training", True, f"training is over: {row.phase}")
        if row.times.resumed_update is None or row.times.last_update is None:
            return HealthSign("training", False, "no update yet")
        still_s = self._age_s(row.time) + row.times.seconds - row.times.last_update
        done = f"{row.applied:,} of {row.total:,} updates" if row.total else f"{row.applied:,} updates"
        message = f"{done}, the last one {still_s:.1f} s ago"
        return _bounded("training", message, still_s, self.bounds.age_s, "--max-age")

    def _saved(self) -> HealthSign:
        """Return whether the newest checkpoint or snapshot is young enough."""
        most_s = self.bounds.save_s
        times = [saved for folder in self.run_dir.states if (saved := checkpoints.saved_at(folder)) is not None]
        if not times:
            return HealthSign("saved", most_s is None, "no checkpoint or snapshot yet")
        age_s = self._age_s(max(times))
        message = f"the newest checkpoint or snapshot is {age_s:.1f} s old"
        return _bounded("saved", message, age_s, most_s, "--max-save-age")


def _bounded(name: str, message: str, seconds: float, most_s: float | None, option: str) -> HealthSign:
    """Return a finding that is bad if `seconds` is above `most_s`, which the user has set with `option`."""
    good = most_s is None or seconds <= most_s
    return HealthSign(name, good, message if good else f"{message} ({option} {most_s:g})")


@dataclass(frozen=True)
class Health:
    """The result of a probe: all its findings."""

    probe: Probe
    signs: tuple[HealthSign, ...]

    @property
    def good(self) -> bool:
        return all(sign.good for sign in self.signs)

    @property
    def line(self) -> str:
        """The result on one line: the bad findings, or all findings if none is bad."""
        shown = [sign.message for sign in self.signs if self.good or not sign.good]
        return f"{'' if self.good else 'not '}{_FIRST_WORDS[self.probe]}: {'; '.join(shown)}"

    def to_json(self) -> dict[str, Any]:
        return {"probe": self.probe, "good": self.good, "signs": [asdict(sign) for sign in self.signs]}


def ask(
    root: Path, probe: Probe, task: Task | None, bounds: HealthBounds, machine: Surroundings = Surroundings()
) -> Health:
    """Probe a task of a run, and return the result.

    If `task` is None, the launcher is probed. If there is no launcher, because the tasks were started by hand, all
    tasks on this machine are probed.

    Raises:
      UserError: files of the run are damaged, or the run has no such task.
    """
    run_dir = RunDir(Path(os.path.realpath(root)))
    members = list(_members(run_dir, task, machine.host))
    if not members:
        return Health(
            probe, (HealthSign("process", False, f"no process of {task or 'a run'} has started in '{root}' yet"),)
        )
    facts = HealthFacts(run_dir, bounds, machine, last_row(run_dir.progress, ProgressRow))
    return Health(probe, tuple(sign for member in members for sign in facts.signs(member, probe)))


def _members(run_dir: RunDir, task: Task | None, host: str) -> Iterator[Member]:
    """Yield the processes to probe; none if nothing has started yet."""
    try:
        cluster = read_json(run_dir.cluster, ClusterFile)
    except FileNotFoundError:
        cluster = ClusterFile(tasks=[])
    if cluster.launcher is None:  # tasks were started by hand
        folder = run_dir.workspace(task).name if task else "*"
        for path in sorted(run_dir.tasks.glob(f"{folder}/{TASK_FILE}")):
            own = read_json(path, TaskFile)
            if own.host == host:
                yield _member(own, leads=own.leads, life=own.life)
        return
    if task is None:
        yield Member(LAUNCHER, cluster.launcher.pid, life=cluster.launcher.life, watches_rows=True)
        return
    leader = leader_type({row.type for row in cluster.tasks})
    for row in cluster.tasks:
        if row.task == task:
            yield _member(row, leads=task == Task(leader, 0))
            return
    raise UserError(f"--type, --index: got {task}: the run in '{run_dir.root}' has no such task")


def _member(row: TaskRow, *, leads: bool, life: str | None = None) -> Member:
    assert row.pid is not None, "a task on this machine has a pid"
    return Member(f"{row.task}", row.pid, row.address, life, watches_rows=leads)
