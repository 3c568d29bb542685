"""Serve as a parameter server or worker: start TensorFlow's server, and end with the training.

The server executes the graphs that the chief sends it. In a worker, these are the graphs of training/worker.py. So
there is no loop over steps here.
"""

from __future__ import annotations

import time
from pathlib import Path

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.tasks import WORKER, Task
from ps_cluster.errors import LostTask, UserError
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.runs.leader_messages import LeaderMessage, forget_leader_message, read_leader_message
from ps_cluster.runs.run_dir import log_line
from ps_cluster.system.limits import allowance

LEADER_MESSAGE_INTERVAL_S = 0.5  # between two attempts to read a message of the leader


def serve(config: RunConfig, topology: ClusterTopology, task: Task, *, workspace: Path | None = None) -> None:
    """Serve until the process is killed. The server listens on all interfaces, not only on that of the task's address.

    With the task's `workspace`, read the messages that the leader writes into that folder. Return when a message says
    that training has ended. Raise UserError if the leader refuses this task, and LostTask if it asks the task to start
    again.

    Raises tf.errors.UnknownError if the port is taken.
    """
    if workspace is not None:
        forget_leader_message(workspace)
    server = start_server(topology, task, config.cluster.intra_op_threads)
    if workspace is None:
        server.join()
        raise RuntimeError("the TensorFlow server ended by itself")
    _serve_until_ended(workspace)


def start_server(topology: ClusterTopology, task: Task, intra_op_threads: int) -> tf.distribute.Server:
    """Start the TensorFlow server of a task.

    `intra_op_threads`: the number of threads of one operation, if the task is a worker. Other tasks ignore it.
    """
    import_tensorflow()
    session = tf.compat.v1.ConfigProto()
    # Idle threads would spin before they sleep, on cores that other tasks need.
    session.experimental.disable_thread_spinning = True
    # A parameter server keeps TensorFlow's default: all cores, or as many as a quota allows (system/environment.py).
    if task.type == WORKER:
        session.intra_op_parallelism_threads = intra_op_threads
        # TensorFlow's default is the number of cores. With a single thread a worker connects, but never ends a step.
        session.inter_op_parallelism_threads = max(2, allowance().threads)
    return tf.distribute.Server(
        tf.train.ClusterSpec(topology.cluster),
        job_name=task.type,
        task_index=task.index,
        protocol="grpc",
        config=session,
    )


def _serve_until_ended(workspace: Path) -> None:
    newest: LeaderMessage | None = None
    while newest is None or newest.ended is None:
        time.sleep(LEADER_MESSAGE_INTERVAL_S)
        message = read_leader_message(workspace)
        if message is None or (newest is not None and message.term < newest.term):
            continue
        if message.refused is not None:
            raise UserError(f"the leader refuses this task: {message.refused}")
        if message.start_again is not None:
            raise LostTask(f"the leader asks this task to start again: {message.start_again}")
        if newest is None or message.term > newest.term:
            log_line(f"this task now belongs to the cluster of the leader with term {message.term}")
        newest = message
    log_line(f"the leader says: training is {newest.ended}")
