"""Describe the cluster that a configuration asks for, or that of a run. Starts nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ps_cluster.config import RunConfig, load_config
from ps_cluster.config.modes import CHIEF, EVALUATOR, Flow, Mode, Task
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import one_line
from ps_cluster.installation import PROGRAM
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.report.cluster import ClusterView, TaskView
from ps_cluster.runs.rows import ClusterFile, TaskFile, TaskRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment
from ps_cluster.system.environment import state_of

# Each task hides GPUs from TensorFlow (system/environment.py), which then has one device: all processors.
KNOWN_DEVICES = ("CPU:0",)
ASKING_S = 120.0
_ASK = "import tensorflow as tf; print(*(d.name.removeprefix('/device:') for d in tf.config.list_logical_devices()))"


def of_config(config: RunConfig, devices: Sequence[str] = KNOWN_DEVICES) -> ClusterView:
    """Return the cluster that `run` would start, on ports that are free now. Raises UserError if it is too large."""
    config.check_fits_one_machine()
    cluster, mode = config.cluster, config.mode_kind
    topology = ClusterTopology.local(
        mode.tasks, cluster.workers, cluster.parameter_servers, evaluator=cluster.evaluator
    )
    views = tuple(_view(topology, task, "planned", None, devices) for task in topology.tasks)
    note = f"These ports are free now. A run takes others; `{PROGRAM} task` takes those of TF_CONFIG."
    return ClusterView(_title("planned cluster", topology, mode), note, _flows(mode), views)


def of_run(root: Path, devices: Sequence[str] = KNOWN_DEVICES) -> ClusterView:
    """Return the cluster of a run, with the state of each process. Raises UserError if it has not started one."""
    run_dir = RunDir.open(root)
    mode = load_config(run_dir.config).mode_kind
    try:
        written = read_json(run_dir.cluster, ClusterFile)
    except FileNotFoundError as error:
        raise UserError(f"run directory '{root}' has no {run_dir.cluster.name}: no task has started yet") from error
    topology = ClusterTopology.of_run(written.tasks)
    views = tuple(
        _view(topology, Task(row.type, row.index), _state(row, written, run_dir), row.pid, devices)
        for row in written.tasks
    )
    own = "The ports are in a network of the run's own: nobody else reaches them."
    note = own if written.isolated else "The ports are open to every program of this machine."
    if written.launcher is None:
        note = "Each task was started by itself, on its own machine, where `health` asks for it."
    return ClusterView(_title(f"cluster of {root}", topology, mode), note, _flows(mode), views)


def ask_for_devices(run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> tuple[str, ...]:
    """Return the devices that TensorFlow finds in a task on this machine, asked in a short process.

    Raises RunFailed if it can't be asked.
    """
    variables = environment.for_tensorflow(os.environ)
    try:
        asked = run([sys.executable, "-P", "-c", _ASK], env=variables, capture_output=True, text=True, timeout=ASKING_S)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"--devices: TensorFlow did not answer within {ASKING_S:.0f} s: leave it out") from error
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no output"])[-1]
        raise RunFailed(f"--devices: TensorFlow can't be asked (exit code {asked.returncode}): {one_line(last)}")
    return tuple(asked.stdout.split())


def _state(row: TaskRow, cluster: ClusterFile, run_dir: RunDir) -> str:
    """Return how a process is. Of one that was started on another machine nothing is known."""
    if cluster.launcher is not None and row.pid is not None:
        return state_of(row.pid, run_dir.root)
    with contextlib.suppress(FileNotFoundError, UserError):
        own = read_json(run_dir.task_file(row.type, row.index), TaskFile)
        if own.host == socket.gethostname() and own.pid is not None:
            return state_of(own.pid, run_dir.root, own.life)
    return "elsewhere"


def _view(topology: ClusterTopology, task: Task, state: str, pid: int | None, devices: Sequence[str]) -> TaskView:
    is_member = task in topology.tasks
    serves = is_member and task.type != EVALUATOR and topology.types != (CHIEF,)
    on = f"/job:{task.type}/task:{task.index}" if serves else ""
    return TaskView(
        task=task,
        state=state,
        pid=pid,
        address=topology.address(task) if is_member else None,
        devices=tuple(f"{on}/device:{device}" for device in devices) if is_member else (),
        tf_config=topology.tf_config(task) if is_member else None,
    )


def _title(what: str, topology: ClusterTopology, mode: Mode) -> str:
    numbers = {kind: sum(task.type == kind for task in topology.tasks) for kind in topology.types}
    # Several ps are "ps" too.
    counts = ", ".join(f"{count} {kind}{'s' * (count > 1 and kind != 'ps')}" for kind, count in numbers.items())
    beside = "; beside it the evaluator" if topology.evaluator else ""
    return f"{what}: mode {mode.name}: {counts}{beside}"


def _flows(mode: Mode) -> tuple[Flow, ...]:
    return tuple(flow for flow in mode.flows if {flow.sender, flow.receiver} <= set(mode.tasks))
