"""Run a whole cluster on this machine, from the first process to the summary. Imports no TensorFlow.

Exit codes: 0 completed, or drained after one Ctrl-C, SIGTERM or SIGHUP · 130 (SIGTERM: 143, SIGHUP: 129) stopped at
once, by a second one or because training had not begun · 1 failed · 2 (UserError) bad input that only a task could see.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ps_cluster.clock import AwakeClock
from ps_cluster.cluster import memory
from ps_cluster.cluster.ending import Ending, write_ending
from ps_cluster.cluster.local_cluster import FORK_SERVER, TASK_ARGV, LocalCluster
from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.watch import Watch
from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset, write_form, write_pointer
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.processes import environment, machine, tensorboard_server
from ps_cluster.processes.control_group import room
from ps_cluster.processes.fork_client import ForkServer, fork_server
from ps_cluster.processes.isolation import RunNetwork, network_for
from ps_cluster.processes.stop_requests import StopRequests
from ps_cluster.processes.supervisor import Supervisor
from ps_cluster.reporting.progress import ProgressView
from ps_cluster.reporting.terminal import print_error
from ps_cluster.run import checkpoints
from ps_cluster.run.log_events import MEMORY_SHORT
from ps_cluster.run.run_dir import RunDir


def run_local(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    *,
    resume: bool,
    view: ProgressView,
    began: float | None = None,
    task_argv: tuple[str, ...] = TASK_ARGV,
    limits: Limits = Limits(),
    tensorboard: bool = False,
) -> int:
    """Start the cluster, watch it until training and scoring are over, stop everything, and write the summary.

    Args:
      run_dir: the caller holds its lock (files/locks.py).
      config: complete: "auto" is replaced everywhere by the value chosen.
      began: monotonic seconds from which start-up and wall seconds count; None: from now.
      task_argv: the command that runs one task, to which the task's options are added. `python -m MODULE` is run in a
        fork of a process that has imported TensorFlow.
      limits: bounds of all waits; those for an update grow with what the leader tells of them.
      tensorboard: run TensorBoard until the end, and tell the link.
    Returns:
      The exit code of the program (see the module's docstring).
    Raises:
      UserError: a private network is required and can't be had, or a task found that the user's input was bad.
      RunFailed: the summary can't be written.
    """
    began = time.monotonic() if began is None else began
    clock = AwakeClock()  # one for all limits: each wait, wherever it is, reads the clock and so keeps it going
    isolation, data_dir = config.cluster.isolation, dataset.directory
    with (
        StopRequests() as stop_requests,
        environment.temporary_files_in(run_dir.temporary),
        network_for(isolation, run_dir.root, data_dir, view.notice) as network,
        _fork_server_for(task_argv, network, run_dir, clock) as server,
        tensorboard_server.beside(tensorboard, run_dir.tensorboard, run_dir.log("tensorboard", 0), view.notice),
    ):
        write_whole(run_dir.config, config.to_yaml())
        write_pointer(run_dir.dataset, dataset)
        write_form(run_dir.examples, dataset)
        checkpoints.clear_ended(run_dir.checkpoints)  # the evaluator would take it for the end of this run
        supervisor = Supervisor(popen=server.popen if server else network.popen, clock=clock)
        cluster = LocalCluster(
            config, run_dir, supervisor, network, resume=resume, task_argv=task_argv, fork_server=server
        )
        view.start(config, run_dir, dataset)
        if line := memory.warning(config, room()):
            view.notice(MEMORY_SHORT(line))
        watch = Watch(config, cluster, run_dir, view, stop_requests, limits, clock=clock)
        try:
            ending = watch.until_the_end()
        finally:
            left = cluster.stop_all(limits.grace_s)
            view.tasks(cluster.states())
            view.close()
    try:
        of_proof = write_ending(
            config,
            run_dir,
            view.notice,
            outcome=ending.outcome,
            wall_seconds=time.monotonic() - began,
            began=began,
            life=environment.life_of(os.getpid()),
            restarts={(task.type, task.index): count for task, count in cluster.restarts.items()},
            silences=[silent.to_json() for silent in watch.silences],
            scaled=watch.scalings,
            usage=cluster.usage.report(),
            machine=machine.describe(),
            network=network.to_json(),
        )
    except RunFailed:
        _exit_code(ending, left)  # says what went wrong first
        raise
    return _exit_code(ending, left) or of_proof


@contextmanager
def _fork_server_for(
    task_argv: tuple[str, ...], network: RunNetwork, run_dir: RunDir, clock: AwakeClock
) -> Iterator[ForkServer | None]:
    if task_argv[:2] != (sys.executable, "-m"):
        yield None
        return
    log = run_dir.log(FORK_SERVER.type, FORK_SERVER.index)
    env = environment.for_child(os.environ, os.getpid())
    with fork_server(network.popen, run_dir.root, log, env, clock) as server:
        yield server


def _exit_code(ending: Ending, left: list[str]) -> int:
    if ending.user_error:
        raise UserError(ending.message)
    if left:
        print_error(f"could not be ended: {', '.join(left)}")
    if ending.message:
        print_error(ending.message)
    return ending.exit_code
