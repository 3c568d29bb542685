"""Run one task of a cluster on several machines, started by hand, and narrate it at its terminal."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ps_cluster.catalogue.modes import Mode
from ps_cluster.catalogue.task_types import Task
from ps_cluster.cluster.local_run import WHAT, Notify, complete_config, resolve_data
from ps_cluster.cluster.narrator import Narrator
from ps_cluster.cluster.task import carry_out, is_taken_port, leave, run_task
from ps_cluster.cluster.topology import ClusterTopology
from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import PROGRAM
from ps_cluster.reporting.progress import PlainView
from ps_cluster.reporting.terminal import Output
from ps_cluster.run import checkpoints
from ps_cluster.run.resume import newest_checkpoint
from ps_cluster.run.run_dir import RunDir


def run_one_task(
    config: RunConfig, root: Path, topology: ClusterTopology, task: Task, *, resume: bool, notify: Notify
) -> None:
    """Run one task of a cluster on several machines, then end the process. Raises UserError for bad input.

    Args:
      config: made for a cluster of the size of `topology`.
      root: the run directory. The leader and the evaluator must share it, and all workers of mode sync when they
        resume; the others may have their own.
    """
    _check_mode(topology, config.mode_kind)
    for name, value in (("data.dataset", config.data.dataset), ("model.precision", config.model.precision)):
        if value == "auto":
            raise UserError(
                f"{name}: got 'auto': machines may come to different ones; name one, the same for every task"
            )
    run_dir = RunDir(root.resolve())
    if task == topology.leader and not resume and checkpoints.steps(run_dir.checkpoints):
        raise UserError(f"run directory '{root}' holds checkpoints: choose another, or go on with --resume")
    _check_port_is_free(topology, task)
    held = root if task == topology.leader else RunDir(root).workspace(task.type, task.index)
    with contextlib.ExitStack() as use:
        use.enter_context(locks.sole_use(held, WHAT, notify))
        found = resolve_data(config.data, notify=notify)
        dataset = found.holding_out(config.evaluation.validation_examples)
        config = complete_config(config, dataset)
        if task == topology.leader and resume:  # check before config.yaml is overwritten
            newest_checkpoint(config, run_dir, dataset.train_examples, notify)
        run_dir.make_folders()
        try:
            write_whole(run_dir.config, config.to_yaml())
        except OSError as error:
            raise UserError(f"run directory '{root}' can't be written: {error.strerror}") from error
        body = _narrated(config, run_dir, dataset, topology, task, resume=resume, release=use.close)
        code = carry_out(body, run_dir, task)
    leave(code)


def _narrated(
    config: RunConfig, run_dir: RunDir, dataset: PackedDataset, topology: ClusterTopology, task: Task,
    *, resume: bool, release: Callable[[], None],
) -> Callable[[], None]:  # fmt: skip
    """Return the work of a task, narrated at its terminal. `release` unlocks its folder."""
    view = PlainView(Output(sys.stdout), time.monotonic)
    view.start(config, run_dir, dataset)
    narrator = Narrator(task, topology, run_dir, view)

    def stopped(number: int) -> NoReturn:
        view.notice(f"{task} was stopped by {signal.Signals(number).name}")
        try:
            release()
        finally:
            os._exit(128 + number)

    def body() -> None:
        narrator.start()
        try:
            run_task(config, run_dir, dataset, topology, task, resume=resume, stopped=stopped)
        except Exception as error:
            if is_taken_port(error):
                raise _taken(task, topology) from error
            raise
        finally:
            narrator.end()
        view.notice(_ended(run_dir, task, topology))

    return body


def _check_port_is_free(topology: ClusterTopology, task: Task) -> None:
    """Raise UserError where another program listens at the task's address; TensorFlow needs seconds to find out."""
    address = topology.address(task)
    if address is None or len(topology.tasks) == 1:  # a task without others listens nowhere
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow: earlier connections don't matter
        try:
            probe.bind(("", int(address.rpartition(":")[2])))
        except OSError as error:
            raise _taken(task, topology) from error


def _taken(task: Task, topology: ClusterTopology) -> UserError:
    return UserError(
        f"TF_CONFIG: cluster.{task.type}: '{topology.address(task)}': {task} can't listen there, as a rule because another "
        "program does: stop that one, or give every task a TF_CONFIG with another port"
    )


def _ended(run_dir: RunDir, task: Task, topology: ClusterTopology) -> str:
    """Return a line on how the task ended; the leader's has the outcome of training."""
    ended = checkpoints.ended(run_dir.checkpoints) if task == topology.leader else None
    if ended is None:
        return f"{task} has ended"
    score = f"score it with: {PROGRAM} evaluate --checkpoint-dir {shlex.quote(str(run_dir.root))}"
    goes_on = "" if ended.outcome == "completed" else "; the commands of all tasks with --resume go on"
    return f"{task} has ended: training is {ended.outcome} at step {ended.last_step:,}{goes_on}; {score}"


def _check_mode(topology: ClusterTopology, mode: Mode) -> None:
    """Raise UserError where the task types of `mode` are not those of the cluster."""
    if topology.types != mode.tasks:
        raise UserError(
            f"mode.name: got '{mode.name}', whose cluster has {', '.join(mode.tasks)}, "
            f"but that of TF_CONFIG has {', '.join(topology.types)}"
        )
