"""Show the cluster of a configuration or of a run: as a table, a picture, or TF_CONFIG. Nothing is started."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ps_cluster.config import RunConfig
from ps_cluster.config.merging import load_mode_and_cluster
from ps_cluster.config.modes import Flow, Mode
from ps_cluster.config.tasks import CHIEF, EVALUATOR, Task
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import Json, read_json
from ps_cluster.installation import PROGRAM
from ps_cluster.launch.gpu_choice import is_on_gpus
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.report.terminal import FOLD, LEFT, RIGHT, plain_table
from ps_cluster.runs.rows import ClusterFile, TaskFile, TaskRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.run_processes import state_of

NONE = "–"
_COLOURS = {"running": "green", "stopped": "yellow", "gone": "dim", "planned": "default", "elsewhere": "dim"}


@dataclass(frozen=True)
class TaskView:
    """A task as it is shown to users. A task that has left the cluster has no address, device or TF_CONFIG.

    Attributes:
      state: "planned" if there is no run; else "running", "stopped" (by SIGSTOP), "gone", or "elsewhere" (on another
        machine).
      devices: the names of the devices, as `tf.device` takes them.
    """

    job: str
    index: int
    state: str
    pid: int | None
    address: str | None
    devices: tuple[str, ...]
    tf_config: Json | None

    @property
    def name(self) -> str:
        return f"{self.job} {self.index}"


@dataclass(frozen=True)
class ClusterView:
    """A cluster as it is shown to users: a title, a note, the data that its tasks send to each other, and the tasks."""

    title: str
    note: str
    flows: tuple[Flow, ...]
    tasks: tuple[TaskView, ...]

    def of_type(self, kind: str) -> list[TaskView]:
        return [task for task in self.tasks if task.job == kind]

    def to_json(self) -> Json:
        return asdict(self) | {"flows": [flow._asdict() for flow in self.flows]}


def of_config(config: RunConfig, environment: Mapping[str, str] = os.environ) -> ClusterView:
    """Return the cluster that `run` would start, on ports that are free now. Raises UserError if it is too large."""
    config.check_fits_one_machine()
    cluster, mode = config.cluster, config.chosen_mode
    topology = ClusterTopology.local(
        mode.cluster.types, cluster.workers, cluster.parameter_servers, evaluator=cluster.evaluator
    )
    views = tuple(
        _view(topology, task, "planned", None, is_on_gpus(config, topology, task, environment))
        for task in topology.tasks
    )
    note = f"These ports are examples. A run picks free ports, and `{PROGRAM} task` uses the ports of TF_CONFIG."
    return ClusterView(_title("planned cluster", topology, mode), note, _flows(mode), views)


def of_run(root: Path) -> ClusterView:
    """Return the cluster of a run, with the state of each process. Raises UserError if the run has no cluster yet."""
    run_dir = RunDir.open(root)
    mode, cluster = load_mode_and_cluster(run_dir.config)
    try:
        written = read_json(run_dir.cluster, ClusterFile)
    except FileNotFoundError as error:
        raise UserError(f"run directory '{root}' has no {run_dir.cluster.name}: no task has started yet") from error
    topology = ClusterTopology.of_run(written.tasks)
    views = tuple(
        _view(
            topology,
            row.task,
            _state(row, written, run_dir),
            row.pid,
            cluster.on_gpus and topology.computes_gradients(row.task),
        )
        for row in written.tasks
    )
    private = "The ports are in a private network: no other program can reach them."
    note = private if written.isolated else "The ports are open to every program of this machine."
    if written.launcher is None:
        note = "Each task was started separately. On its machine, `health` shows its state."
    return ClusterView(_title(f"cluster of {root}", topology, mode), note, _flows(mode), views)


def _state(row: TaskRow, cluster: ClusterFile, run_dir: RunDir) -> str:
    """Return the state of a process, or "elsewhere" if it runs on another machine, where it can't be observed."""
    if cluster.launcher is not None and row.pid is not None:
        return state_of(row.pid, run_dir.root)
    with contextlib.suppress(FileNotFoundError, UserError):
        own = read_json(run_dir.task_file(row.task), TaskFile)
        if own.host == socket.gethostname() and own.pid is not None:
            return state_of(own.pid, run_dir.root, own.life)
    return "elsewhere"


def _view(topology: ClusterTopology, task: Task, state: str, pid: int | None, on_gpus: bool) -> TaskView:
    is_member = task in topology.tasks
    serves = is_member and task.type != EVALUATOR and topology.types != (CHIEF,)
    on = f"/job:{task.type}/task:{task.index}" if serves else ""
    return TaskView(
        job=task.type,
        index=task.index,
        state=state,
        pid=pid,
        address=topology.address(task) if is_member else None,
        # Without GPUs, TensorFlow has one device for all processors. GPUs are then hidden (system/environment.py).
        devices=tuple(f"{on}/device:{kind}:0" for kind in ("CPU", *(["GPU"] * on_gpus))) if is_member else (),
        tf_config=json.loads(topology.tf_config(task)) if is_member else None,
    )


def _title(what: str, topology: ClusterTopology, mode: Mode) -> str:
    numbers = {kind: sum(task.type == kind for task in topology.tasks) for kind in topology.types}
    # The plural of "ps" is "ps" too.
    counts = ", ".join(f"{count} {kind}{'s' * (count > 1 and kind != 'ps')}" for kind, count in numbers.items())
    beside = "; and, outside the cluster, the evaluator" if topology.evaluator else ""
    return f"{what}: mode {mode.name}: {counts}{beside}"


def _flows(mode: Mode) -> tuple[Flow, ...]:
    return tuple(flow for flow in mode.cluster.flows if {flow.sender, flow.receiver} <= set(mode.cluster.types))


# Print a cluster.


def print_cluster(view: ClusterView, console: Console) -> None:
    """Print a table with a row for each task, and what the tasks send to each other."""
    table = plain_table(task=LEFT, state=LEFT, pid=RIGHT, address=LEFT, devices=FOLD)
    for task in view.tasks:
        state, pid = Text(task.state, _COLOURS[task.state]), str(task.pid or NONE)
        table.add_row(task.name, state, pid, task.address or NONE, ", ".join(task.devices) or NONE)
    console.print(view.title, style="bold", highlight=False, soft_wrap=True)
    console.print(table)
    for flow in view.flows:
        console.print(f"{flow.sender} → {flow.receiver}: {flow.what}", highlight=False, soft_wrap=True)
    console.print(view.note, style="dim", highlight=False, soft_wrap=True)


def lines_of_tf_config(tasks: Sequence[TaskView]) -> Iterator[str]:
    """Yield two lines for each member of the cluster: its name, and a shell command that sets TF_CONFIG."""
    for task in tasks:
        if task.tf_config is not None:
            yield f"# {task.name}"
            yield f"export TF_CONFIG='{json.dumps(task.tf_config)}'"
