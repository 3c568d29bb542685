"""Run a whole cluster on this machine, from the first process to the summary. Imports no TensorFlow.

The exit code is one of those in errors.py. A run that was stopped by one Ctrl-C, SIGTERM or SIGHUP is drained: it
finishes its open steps and writes a last checkpoint. Its exit code is 0. A second signal, or a signal before training
begins, stops the run without a drain. The exit code is then 128 plus the number of the signal.
"""

from __future__ import annotations

import os
import time

from ps_cluster.clock import AwakeClock
from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset, write_description, write_pointer
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.launch import fork_server_program, memory
from ps_cluster.launch.actions import EndRun
from ps_cluster.launch.endings import write_ending
from ps_cluster.launch.event_loop import EventLoop
from ps_cluster.launch.local_cluster import FORK_SERVER, TENSORBOARD, LocalCluster
from ps_cluster.launch.network_check import check_network, described_objective
from ps_cluster.launch.stages import RunLimits
from ps_cluster.launch.task import TASK_ARGV
from ps_cluster.process_variables import temporary_files_in
from ps_cluster.report.progress import ProgressView
from ps_cluster.report.summary import EndedRun
from ps_cluster.report.terminal import print_error
from ps_cluster.runs import checkpoints
from ps_cluster.runs.logs import MEMORY_SHORT
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system import environment, machine, tensorboard_server
from ps_cluster.system.child_process import ProcessCalls
from ps_cluster.system.forked_tasks import ForkServer
from ps_cluster.system.limits import free_memory
from ps_cluster.system.private_network import network_for
from ps_cluster.system.run_processes import life_of
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.system.supervisor import Supervisor


def run_local(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    *,
    resume: bool,
    view: ProgressView,
    began: float | None = None,
    task_argv: tuple[str, ...] = TASK_ARGV,
    limits: RunLimits = RunLimits(),
    tensorboard: bool = False,
    stop_requests: StopRequests | None = None,
) -> int:
    """Start the cluster, watch it until training and scoring are over, stop everything, and write the summary.

    Return the exit code of the program (see the module's docstring).

    Args:
      config: a complete configuration, in which values have replaced every "auto".
      run_dir: the run directory, whose lock the caller holds (files/locks.py).
      began: the monotonic time from which start-up and wall seconds are counted, or None for the time of the call.
      task_argv: the command that runs one task. The task's options are added to it. If the command has the form
        `python -m MODULE`, the module runs in a fork of a process that has already imported TensorFlow, unless the task
        computes on a GPU.
      stop_requests: counts the signals that ask to stop. After the call, the caller can read this count, even if the
        run has completed.
    Raises:
      UserError: a private network is required but impossible here, or a task found that the user's input was bad.
      RunFailed: the summary can't be written.
    """
    began = time.monotonic() if began is None else began
    clock = AwakeClock()  # one clock for all limits; it counts waits fully only if they read it often
    isolation, data_dir = config.cluster.isolation, dataset.directory
    with (
        stop_requests or StopRequests() as stop_requests,
        temporary_files_in(run_dir.temporary),
        network_for(isolation, run_dir.root, data_dir, view.notice) as network,
        ForkServer(
            fork_server_program.ARGV,
            network.popen,
            run_dir.root,
            run_dir.log(FORK_SERVER),
            environment.for_child(os.environ),
            clock,
        ) as server,
        tensorboard_server.tensorboard_if(tensorboard, run_dir.tensorboard, run_dir.log(TENSORBOARD), view.notice),
    ):
        write_whole(run_dir.config, config.to_yaml())
        write_pointer(run_dir.dataset, dataset)
        write_description(run_dir.examples, dataset)
        checkpoints.clear_ended(run_dir.checkpoints)  # the evaluator would take an old mark for the end of this run
        supervisor = Supervisor(popen=network.popen, fork=server.popen, calls=ProcessCalls(clock))
        cluster = LocalCluster(
            config,
            run_dir,
            supervisor,
            network,
            resume=resume,
            task_argv=task_argv,
            fork_server=server,
            notify=view.notice,
        )
        view.start(config, run_dir, dataset, described_objective(dataset, check_network(config, dataset)))
        if line := memory.warning(config, free_memory()):
            view.notice(MEMORY_SHORT(line))
        loop = EventLoop(config, cluster, run_dir, view, stop_requests, limits, clock=clock)
        server.stops = loop.stops_at_once  # before the loop starts the first task, and with it the server
        try:
            ending = loop.until_the_end()
        finally:
            left = cluster.stop_all(limits.grace_s)
            view.tasks(cluster.states())
            view.close()
    try:
        ended = EndedRun(
            outcome=ending.outcome,
            wall_seconds=time.monotonic() - began,
            began=began,
            life=life_of(os.getpid()),
            restarts=cluster.restarts,
            silences=loop.decisions.silences,
            scaled=loop.scalings,
            early_stop=loop.decisions.early_stop,
            usage=cluster.usage.report(),
            machine=machine.describe(),
            network=network.summary(),
        )
        proof_code = write_ending(config, run_dir, ended, view.notice)
    except RunFailed:
        _exit_code(ending, left)  # report first what went wrong in the run
        raise
    return _exit_code(ending, left) or proof_code


def _exit_code(ending: EndRun, left: list[str]) -> int:
    if ending.user_error:
        raise UserError(ending.message)
    if left:
        print_error(f"these processes could not be ended: {', '.join(left)}")
    if ending.message:
        print_error(ending.message)
    return ending.exit_code
