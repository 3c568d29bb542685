"""Tell whether a run, or one task of it, lives and makes progress, from its files and processes. No TensorFlow."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ps_cluster.config.modes import CHIEF, WORKER, Task
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import last_row, read_json
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import LAUNCHER
from ps_cluster.runs.result_rows import SAVING, ProgressRow
from ps_cluster.runs.rows import ClusterFile, TaskFile, TaskRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment
from ps_cluster.system.environment import age_seconds
from ps_cluster.system.network import host_and_port

BEFORE, UNDER_WAY = ("connecting", "building"), ("training", SAVING, "draining")  # phases of rows
_SLACK_S = 1.0  # between the clock of a process's start and that of rows


@dataclass(frozen=True)
class HealthSign:
    """An answer of a probe. `says`: for the line that it prints."""

    name: str
    good: bool
    says: str


@dataclass(frozen=True)
class Member:
    """A process to ask about. `watches_rows`: it writes the rows of progress, or started who does."""

    name: str
    pid: int
    address: str | None = None
    life: str | None = None
    watches_rows: bool = False


@dataclass(frozen=True)
class HealthBounds:
    """HealthBounds of the age of a sign, in seconds. `save_s`: None: any age."""

    age_s: float
    save_s: float | None = None


@dataclass(frozen=True)
class Surroundings:
    """The questions to the machine, passed in so that tests can give answers."""

    state: Callable[[int, Path, str | None], str] = environment.state_of
    listens: Callable[[int, int], bool] = environment.listens
    age_s: Callable[[int], float] = age_seconds
    wall: Callable[[], float] = time.time
    host: str = socket.gethostname()


@dataclass(frozen=True)
class HealthFacts:
    """All that a probe looks at."""

    run_dir: RunDir
    bounds: HealthBounds
    machine: Surroundings
    row: ProgressRow | None

    def is_of(self, member: Member) -> bool:
        """Return whether the newest row was written in the life of a process."""
        began = self.machine.wall() - self.machine.age_s(member.pid)
        return self.row is not None and self.row.time >= began - _SLACK_S

    def under_way(self, member: Member) -> bool:
        """Return whether a process writes rows, or started who does, and training goes on by the newest."""
        return member.watches_rows and self.row is not None and self.row.phase in UNDER_WAY

    @property
    def row_age_s(self) -> float:
        return max(0.0, self.machine.wall() - self.row.time) if self.row else 0.0


Look = Callable[[Member, HealthFacts], HealthSign | None]


def process_sign(member: Member, scene: HealthFacts) -> HealthSign:
    """Return whether the process is there, and not stopped."""
    state = scene.machine.state(member.pid, scene.run_dir.root, member.life)
    return HealthSign("process", state == "running", f"{member.name} (pid {member.pid}) is {state}")


def port_sign(member: Member, scene: HealthFacts) -> HealthSign | None:
    """Return whether the task's port is open. The leader opens its own when it connects, so its rows are asked."""
    if member.address is None or member.watches_rows:
        return None
    _, port = host_and_port(member.address)
    good = scene.machine.listens(member.pid, port)
    return HealthSign("port", good, f"port {port} is open" if good else f"nothing listens at port {port}")


def rows_sign(member: Member, scene: HealthFacts) -> HealthSign | None:
    """Return whether the rows are fresh while training is under way, which takes half a second a row."""
    if not scene.under_way(member) or not scene.is_of(member):
        return None
    age_s, most_s = scene.row_age_s, scene.bounds.age_s
    bound = "" if age_s <= most_s else f" (--max-age {most_s:g})"
    return HealthSign("rows", age_s <= most_s, f"the last sign of the leader is {age_s:.1f} s old{bound}")


def training_sign(member: Member, scene: HealthFacts) -> HealthSign | None:
    """Return whether training has begun and goes on."""
    if not member.watches_rows:
        return None
    row = scene.row
    if row is None or row.phase in BEFORE or not scene.is_of(member):
        return HealthSign("training", False, f"training has not begun: {row.phase if row else 'no row yet'}")
    if row.phase not in UNDER_WAY:
        return HealthSign("training", True, f"training is over: {row.phase}")
    if row.times.resumed_update is None or row.times.last_update is None:
        return HealthSign("training", False, "no update yet")
    still_s = scene.row_age_s + row.times.seconds - row.times.last_update
    good = still_s <= scene.bounds.age_s
    bound = "" if good else f" (--max-age {scene.bounds.age_s:g})"
    done = f"{row.applied:,} of {row.total:,} updates" if row.total else f"{row.applied:,} updates"
    return HealthSign("training", good, f"{done}, the last one {still_s:.1f} s ago{bound}")


def saved_sign(member: Member, scene: HealthFacts) -> HealthSign | None:
    """Return whether the newest checkpoint or snapshot is young enough, while training is under way."""
    if not scene.under_way(member):
        return None
    most_s = scene.bounds.save_s
    times = [saved for folder in scene.run_dir.states if (saved := checkpoints.saved_at(folder)) is not None]
    if not times:
        return HealthSign("saved", most_s is None, "no checkpoint or snapshot yet")
    age_s = max(0.0, scene.machine.wall() - max(times))
    good = most_s is None or age_s <= most_s
    bound = "" if good else f" (--max-save-age {most_s:g})"
    return HealthSign("saved", good, f"the newest checkpoint or snapshot is {age_s:.1f} s old{bound}")


_LIVE: tuple[Look, ...] = (process_sign, port_sign, rows_sign)
PROBES = {"live": _LIVE, "ready": (*_LIVE, training_sign, saved_sign)}
_GOOD = {"live": "alive", "ready": "ready"}  # the first word of an answer


@dataclass(frozen=True)
class Health:
    """The answer of a probe. `probe`: one of PROBES."""

    probe: str
    signs: tuple[HealthSign, ...]

    @property
    def good(self) -> bool:
        return all(sign.good for sign in self.signs)

    @property
    def line(self) -> str:
        """The answer on one line: all signs or, where some are bad, those."""
        told = [sign.says for sign in self.signs if self.good or not sign.good]
        return f"{'' if self.good else 'not '}{_GOOD[self.probe]}: {'; '.join(told)}"

    def to_json(self) -> dict[str, Any]:
        return {"probe": self.probe, "good": self.good, "signs": [asdict(sign) for sign in self.signs]}


def ask(root: Path, probe: str, task: Task | None, bounds: HealthBounds, machine: Surroundings | None = None) -> Health:
    """Return the health of a task or, without one, of what runs here: the launcher, or all tasks of this machine.

    Raises UserError where files of the run are damaged, or it has no such task.
    """
    run_dir, machine = RunDir(Path(os.path.realpath(root))), machine or Surroundings()
    members = list(_members(run_dir, task, machine.host))
    if not members:
        return Health(
            probe, (HealthSign("process", False, f"nothing of {task or 'a run'} has started in '{root}' yet"),)
        )
    scene = HealthFacts(run_dir, bounds, machine, last_row(run_dir.progress, ProgressRow))
    signs: list[HealthSign] = []
    for member in members:
        for look in PROBES[probe]:
            if (sign := look(member, scene)) is not None:
                signs.append(sign)
                if sign.name == "process" and not sign.good:
                    break  # what it left tells nothing
    return Health(probe, tuple(signs))


def _members(run_dir: RunDir, task: Task | None, host: str) -> Iterator[Member]:
    """Yield the processes to ask about; none where nothing has started yet."""
    try:
        cluster = read_json(run_dir.cluster, ClusterFile)
    except FileNotFoundError:
        cluster = ClusterFile(tasks=[])
    if cluster.launcher is None:  # tasks were started by hand
        folder = run_dir.workspace(task.type, task.index).name if task else "*"
        for path in sorted(run_dir.tasks.glob(f"{folder}/{run_dir.task_file('', 0).name}")):
            own = read_json(path, TaskFile)
            if own.host == host:
                yield _member(own, leads=own.leads, life=own.life)
        return
    if task is None:
        yield Member(LAUNCHER, cluster.launcher.pid, life=cluster.launcher.life, watches_rows=True)
        return
    leader = CHIEF if any(row.type == CHIEF for row in cluster.tasks) else WORKER
    for row in cluster.tasks:
        if Task(row.type, row.index) == task:
            yield _member(row, leads=task == Task(leader, 0))
            return
    raise UserError(f"--type, --index: got {task}: the run in '{run_dir.root}' has no such task")


def _member(row: TaskRow, *, leads: bool, life: str | None = None) -> Member:
    assert row.pid is not None, "it is of a task on this machine"
    return Member(f"{row.type}-{row.index}", row.pid, row.address, life, watches_rows=leads)
