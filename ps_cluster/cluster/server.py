"""The body of a parameter server or worker: a TensorFlow server that does what the chief sends it."""

from __future__ import annotations

from typing import NoReturn

from ps_cluster.cluster.control_group import allowance
from ps_cluster.cluster.quiet_import import without_first_lines
from ps_cluster.cluster.topology import WORKER
from ps_cluster.config import RunConfig


def serve(config: RunConfig, cluster: dict[str, list[str]], task_type: str, index: int) -> NoReturn:
    """Serves until the process is killed. It listens on every interface, whatever host its address names.

    Raises:
      tf.errors.UnknownError: the server can't listen, as a rule because the port is taken.
    """
    with without_first_lines():
        import tensorflow as tf

    session = tf.compat.v1.ConfigProto()
    # Idle threads look around for work before they sleep, on cores that other tasks need.
    session.experimental.disable_thread_spinning = True
    if (
        task_type == WORKER
    ):  # a parameter server keeps TensorFlow's choice: all cores, or those of a quota (environment.py)
        session.intra_op_parallelism_threads = config.cluster.intra_op_threads
        # TensorFlow would take as many as there are cores, and with one a server never connects.
        session.inter_op_parallelism_threads = max(2, allowance().threads)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=task_type, task_index=index, protocol="grpc", config=session
    )
    server.join()
    raise RuntimeError("the TensorFlow server ended by itself")
