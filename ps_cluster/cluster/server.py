"""Run a parameter server or worker: a TensorFlow server that runs the graphs that the chief sends."""

from __future__ import annotations

from typing import NoReturn

from ps_cluster.catalogue.task_types import WORKER
from ps_cluster.config import RunConfig
from ps_cluster.processes.control_group import allowance
from ps_cluster.processes.quiet_import import without_first_lines


def serve(config: RunConfig, cluster: dict[str, list[str]], task_type: str, index: int) -> NoReturn:
    """Serve until the process is killed. The server listens on every interface, whatever host its address names.

    Raises:
      tf.errors.UnknownError: the server can't listen, as a rule because the port is taken.
    """
    with without_first_lines():
        import tensorflow as tf

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
    server.join()
    raise RuntimeError("the TensorFlow server ended by itself")
