"""Run a parameter server or worker: a TensorFlow server that runs the graphs that the chief sends."""

from __future__ import annotations

import time
from pathlib import Path

from ps_cluster.catalogue.task_types import WORKER
from ps_cluster.config import RunConfig
from ps_cluster.errors import UserError
from ps_cluster.processes.control_group import allowance
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.run.run_dir import say
from ps_cluster.run.told import Told, forget_told, read_told

LOOK_EVERY_S = 0.5


def serve(
    config: RunConfig, cluster: dict[str, list[str]], task_type: str, index: int, *, told: Path | None = None
) -> None:
    """Serve until the process is killed. The server listens on every interface, whatever host its address names.

    Args:
      told: the task's workspace, in which a leader says that training has ended; then return. None: serve on.
    Raises:
      UserError: the leader does not take this task.
      tf.errors.UnknownError: the server can't listen, as a rule because the port is taken.
    """
    import_tensorflow()
    import tensorflow as tf

    if told is not None:
        forget_told(told)
    session = tf.compat.v1.ConfigProto()
    # Idle threads would spin before they sleep, on cores that other tasks need.
    session.experimental.disable_thread_spinning = True
    if (
        task_type == WORKER
    ):  # a parameter server keeps TensorFlow's default: all cores, or as many as a quota allows (environment.py)
        session.intra_op_parallelism_threads = config.cluster.intra_op_threads
        # TensorFlow's default is the number of cores; with a single thread a server never connects.
        session.inter_op_parallelism_threads = max(2, allowance().threads)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=task_type, task_index=index, protocol="grpc", config=session
    )
    if told is None:
        server.join()
        raise RuntimeError("the TensorFlow server ended by itself")
    _serve_until_told(told)


def _serve_until_told(folder: Path) -> None:
    newest: Told | None = None
    while newest is None or newest.ended is None:
        time.sleep(LOOK_EVERY_S)
        told = read_told(folder)
        if told is None or newest is not None and told.epoch < newest.epoch:
            continue
        if told.refused is not None:
            raise UserError(f"the leader does not take this task: {told.refused}")
        if newest is None or told.epoch > newest.epoch:
            say(f"part of the cluster of leader epoch {told.epoch}")
        newest = told
    say(f"the leader says: training is {newest.ended}")
