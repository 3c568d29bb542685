"""Run one task of a cluster on several machines, and say at its terminal what happens."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import PS, WORKER, Mode, Task
from ps_cluster.data.packed import PackedDataset, write_form, write_pointer
from ps_cluster.errors import BAD_INPUT, RETRY, SUPERSEDED, UserError
from ps_cluster.files import locks
from ps_cluster.files.writing import set_fence, write_json, write_whole
from ps_cluster.installation import finding_this_package
from ps_cluster.launch.keeper import RendezvousLimits, TaskSupervisor, taken
from ps_cluster.launch.launcher import TASK_ARGV, write_ending
from ps_cluster.launch.local_run import WHAT, Notify, complete_config, resolve_data
from ps_cluster.launch.rules import LauncherLimits
from ps_cluster.launch.task import leave
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.report.progress import ProgressView
from ps_cluster.report.terminal import print_error
from ps_cluster.runs import checkpoints
from ps_cluster.runs.messages import Claim, Superseded, claim
from ps_cluster.runs.result_rows import ProgressRow, with_work
from ps_cluster.runs.rows import ClusterFile, TaskFile
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment, machine
from ps_cluster.system.environment import LAUNCHER_PID, StopRequests
from ps_cluster.system.network import check_is_free, guard_port
from ps_cluster.training.agreement import newest_checkpoint

AUTO, NEVER, ALWAYS = "auto", "never", "always"  # values of --resume
PORT_FREE_WITHIN_S = 10.0  # seconds in which an earlier process of the task may still end
_LOOK_EVERY_S = 0.2


def run_one_task(
    config: RunConfig, root: Path, topology: ClusterTopology, task: Task,
    *, resume: str, wait_s: float, min_workers: int | None, view: ProgressView, notify: Notify,
    task_argv: tuple[str, ...] = TASK_ARGV,
) -> None:  # fmt: skip
    """Run one task of a cluster on several machines, then end the process. Raises UserError for bad input.

    Args:
      config: made for a cluster of the size of `topology`.
      root: the run directory. The leader and the evaluator must share it; the others may have their own.
      resume: "auto" (go on from a checkpoint or snapshot if there is one), "never" or "always".
      wait_s: how long at most this task waits for the others.
      min_workers: how many workers are enough to begin; None: all, or those that came within a minute.
      view: shows the training. notify: gets lines from before it begins.
      task_argv: as for `run_local`.
    """
    _check_mode(topology, config.mode_kind)
    _check_size(config, topology)
    check_min_workers(min_workers, len(topology.cluster.get(WORKER, ())), config.mode_kind)
    check_named(config)
    run_dir, leads = RunDir(Path(os.path.realpath(root))), task == topology.leader
    _goes_on(resume, run_dir, leads=leads)
    _check_port_is_free(topology, task)
    guard_port(config.cluster.isolation, topology.port(task), topology.addresses, notify)
    patience = RendezvousLimits(wait_s, min_workers, needs_all=not config.mode_kind.on_death[WORKER].dispensable)
    # Leaders share: a newer one takes over from one that is frozen or can't be reached (runs/messages.py).
    held = root if leads else RunDir(root).workspace(task.type, task.index)
    try:
        with locks.sole_use(held, WHAT, notify, shared=leads):
            whole = resolve_data(config.data, notify=notify)
            dataset = whole.holding_out(config.evaluation.validation_examples)
            config = complete_config(config, dataset)
            with StopRequests() as requests:
                code = _lead_or_follow(
                    config, run_dir, dataset, topology, task,
                    resume=resume, patience=patience, requests=requests, view=view, notify=notify,
                    task_argv=task_argv,
                )  # fmt: skip
    except locks.InUse as error:
        if leads:
            raise
        notify(f"{error}; it may just be ending: the same command goes on (exit code {RETRY})")
        code = RETRY
    leave(code)


def _lead_or_follow(
    config: RunConfig, run_dir: RunDir, dataset: PackedDataset, topology: ClusterTopology, task: Task,
    *, resume: str, patience: RendezvousLimits, requests: StopRequests, view: ProgressView, notify: Notify,
    task_argv: tuple[str, ...],
) -> int:  # fmt: skip
    """Keep the task until it ends; return the exit code. A leader claims the run directory first."""
    leads = task == topology.leader
    if leads and _goes_on(resume, run_dir, leads=leads):  # bad input must not end a leader that is at work
        newest_checkpoint(config, run_dir, dataset, notify)
    try:
        claimed = claim(run_dir) if leads else None
        if claimed is not None:
            set_fence(claimed.check)
        goes_on = _goes_on(resume, run_dir, leads=leads)  # asked again: until the claim another leader may have saved
        if leads and goes_on:  # check before config.yaml is overwritten
            begun = newest_checkpoint(config, run_dir, dataset, lambda line: None)
            notify(f"run directory '{run_dir.root}': training goes on from step {begun.step:,}")
        _write(config, run_dir, dataset, task, leads=leads)
        child = functools.partial(
            _start,
            run_dir,
            topology,
            task,
            resume=goes_on,
            claimed=claimed,
            wait_s=patience.wait_s,
            task_argv=task_argv,
        )
        _write_task_file(run_dir, topology, task)
        if leads:
            _write_cluster(run_dir, topology, config.mode_kind.trainer_type, {})
        view.start(config, run_dir, dataset)
        view.tasks([{"type": task.type, "index": task.index, "pid": os.getpid(), "state": "running"}])
        total = config.total_updates(dataset.train_examples)
        began, epoch = time.monotonic(), claimed.epoch if claimed else 0
        keeper = TaskSupervisor(
            task, topology, run_dir, view, requests, child, LauncherLimits(), patience, total=total,
            conclude=lambda outcome: _conclude(outcome, config, run_dir, topology, epoch, began, view.notice),
            note_workers=lambda pids: _write_cluster(run_dir, topology, config.mode_kind.trainer_type, pids),
        )  # fmt: skip
        with environment.temporary_files_in(run_dir.temporary_of(task.type, task.index)):
            code = keeper.run()
        if claimed is not None and code not in (0, BAD_INPUT):
            claimed.check()  # an older leader must not be started again, whatever has ended it
    except Superseded as error:
        print_error(str(error))
        code = SUPERSEDED
    finally:
        set_fence(None)
        view.close()
    return code


def _conclude(
    outcome: str,
    config: RunConfig,
    run_dir: RunDir,
    topology: ClusterTopology,
    leaders: int,
    began: float,
    notify: Notify,
) -> int:
    """Write and print what `run` does at its end. Return the exit code that the proof asks for.

    Each task is started again by whoever has started it, so what it is now is known of its work alone.
    """
    (newest,) = with_work(run_dir.work, [ProgressRow(phase="starting")])  # of each worker all processes
    kind = config.mode_kind.trainer_type
    restarts = Counter((kind, worker.index) for worker in newest.workers)
    restarts.subtract(set(restarts))  # the first process of each is no restart
    restarts[topology.leader.type, topology.leader.index] = leaders - 1
    return write_ending(
        config, run_dir, notify,
        outcome=outcome, wall_seconds=time.monotonic() - began, began=began, life=None, restarts=restarts, silences=[],
        scaled=[], usage={}, machine=machine.describe(), network={}, leaders=leaders,
        draw=outcome != "failed",
    )  # fmt: skip


def check_named(config: RunConfig) -> None:
    """Raise UserError where the configuration leaves to each machine what has to be the same for all."""
    for name, value in (("data.dataset", config.data.dataset), ("model.precision", config.model.precision)):
        if value == "auto":
            raise UserError(
                f"{name}: got 'auto': machines may come to different ones; name one, the same for every task"
            )


def _write(config: RunConfig, run_dir: RunDir, dataset: PackedDataset, task: Task, *, leads: bool) -> None:
    """Write what the task's process reads. The run's own config.yaml is the leader's."""
    run_dir.make_folders()
    try:
        if leads:
            write_whole(run_dir.config, config.to_yaml())
            write_pointer(run_dir.dataset, dataset)
            write_form(run_dir.examples, dataset)
        write_whole(run_dir.config_of(task.type, task.index), config.to_yaml())
        write_pointer(run_dir.dataset_of(task.type, task.index), dataset)
    except OSError as error:
        raise UserError(f"run directory '{run_dir.root}' can't be written: {error.strerror}") from error


def _start(
    run_dir: RunDir, topology: ClusterTopology, task: Task, least_workers: int | None,
    *, resume: bool, claimed: Claim | None, wait_s: float, task_argv: tuple[str, ...],
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start the process that runs TensorFlow. It writes to this terminal, and ends with this process."""
    named = ("--run-dir", str(run_dir.root), "--type", task.type, "--index", str(task.index), "--alone")
    waiting = ("--wait-seconds", str(wait_s))
    leading = ("--epoch", str(claimed.epoch)) if claimed else ()
    least = () if least_workers is None else ("--least-workers", str(least_workers))
    env = environment.for_tensorflow(finding_this_package(os.environ))
    env |= {LAUNCHER_PID: str(os.getpid()), "TF_CONFIG": topology.tf_config(task)}
    return subprocess.Popen(
        [*task_argv, *named, *waiting, *leading, *least, *(("--resume",) if resume else ())],
        env=env, cwd=run_dir.root, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _goes_on(resume: str, run_dir: RunDir, *, leads: bool) -> bool:
    """Return whether training goes on from what the run directory holds. Raises UserError where the leader can't."""
    held = bool(checkpoints.newest_first(run_dir.states))
    if leads and held and resume == NEVER:
        raise UserError(
            f"--resume: got 'never', but run directory '{run_dir.root}' holds checkpoints or snapshots: "
            "choose another, or leave --resume out to go on from them"
        )
    if leads and not held and resume == ALWAYS:
        raise UserError(
            f"--resume: got 'always', but run directory '{run_dir.root}' holds no checkpoint to resume from: "
            "leave --resume out to begin there"
        )
    return resume == ALWAYS or held and resume == AUTO


def _write_task_file(run_dir: RunDir, topology: ClusterTopology, task: Task) -> None:
    """Write who this process is, for the command `health` beside it."""
    who = {"type": task.type, "index": task.index, "pid": os.getpid(), "address": topology.address(task)}
    where = {"host": socket.gethostname(), "leads": task == topology.leader}
    where |= {"life": environment.life_of(os.getpid())}
    write_json(run_dir.task_file(task.type, task.index), TaskFile.model_validate(who | where).model_dump())


def _write_cluster(run_dir: RunDir, topology: ClusterTopology, trains: str, pids: Mapping[int, int]) -> None:
    """Write cluster.json, as the launcher of `run` does. `pids`: of the workers that are known by their work.

    Args:
      trains: the type of the tasks that train.
    """
    known = {Task(trains, index): pid for index, pid in pids.items()} | {topology.leader: os.getpid()}
    tasks = [
        {"type": task.type, "index": task.index, "pid": known.get(task), "address": topology.address(task)}
        for task in topology.tasks
    ]
    write_json(run_dir.cluster, ClusterFile.model_validate({"tasks": tasks}).model_dump())


def _check_size(config: RunConfig, topology: ClusterTopology) -> None:
    """Raise UserError where the configuration is for another number of tasks than the cluster has."""
    for kind, given in ((WORKER, config.cluster.workers), (PS, config.cluster.parameter_servers)):
        if kind in topology.cluster and given != (count := len(topology.cluster[kind])):
            name = "workers" if kind == WORKER else "parameter_servers"
            raise UserError(
                f"cluster.{name}: got {given}, but the cluster of {topology.origin.name} has {count}: leave it out"
            )


def _check_port_is_free(topology: ClusterTopology, task: Task) -> None:
    """Raise UserError where another program listens at the task's address; TensorFlow needs seconds to find out."""
    address = topology.address(task)
    if address is None or topology.port(task) is None:
        return
    until = time.monotonic() + PORT_FREE_WITHIN_S
    while True:
        try:
            return check_is_free(address)
        except OSError as error:
            if time.monotonic() >= until:
                raise UserError(taken(task, topology)) from error
        time.sleep(_LOOK_EVERY_S)


def _check_mode(topology: ClusterTopology, mode: Mode) -> None:
    """Raise UserError where the task types of `mode` are not those of the cluster."""
    if topology.types != mode.tasks:
        raise UserError(
            f"mode.name: got '{mode.name}', whose cluster has {', '.join(mode.tasks)}, "
            f"but that of {topology.origin.name} has {', '.join(topology.types)}"
        )


def check_min_workers(min_workers: int | None, workers: int, mode: Mode) -> None:
    """Raise UserError where training can't begin with so many of the workers of the cluster. None is always fine."""
    if min_workers is None or min_workers == workers:
        return
    if min_workers > workers:
        raise UserError(f"--min-workers: got {min_workers}; the cluster has {workers} of type {WORKER}")
    if mode.fixed_workers:
        raise UserError(f"--min-workers: got {min_workers}: {mode.cannot_scale}: leave it out")
