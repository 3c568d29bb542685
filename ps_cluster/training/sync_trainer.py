"""A worker of synchronous training by all-reduce with MultiWorkerMirroredStrategy, the usual alternative.

Every worker holds all parameters, computes the gradient of its part of the batch, and applies the mean of all workers.
A step needs one flat all-reduce, and another one for the moving statistics where the network has any and the wire is
not float32. Worker 0 also writes checkpoints, rows and the result. TF_CONFIG names the workers.
"""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.eager import context

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.processes.lifeline import LAUNCHER_PID
from ps_cluster.run.ledger import NOBODY
from ps_cluster.run.run_dir import RunDir
from ps_cluster.training.parameter_store import ParameterStore, Pulled
from ps_cluster.training.session import Session
from ps_cluster.training.step import StepResult
from ps_cluster.training.waiting import after, now_after
from ps_cluster.training.worker import Computation, Compute, Identity

_NEVER_MS = 2**31 - 1  # 25 days
_SUM = tf.distribute.ReduceOp.SUM


def train(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    cluster: dict[str, list[str]],
    index: int,
    *,
    resume: bool,
    drain: threading.Event | None,
) -> None:
    """Train as worker `index`; return when all updates are applied, or soon after `drain` of worker 0 is set.

    Raises:
      UserError: the checkpoint to resume from is missing or of another model.
      tf.errors.OpError: another worker failed.
    """
    session = Session(config, run_dir, dataset, leads=index == 0)
    session.begin(resume=resume)
    strategy = _connect(config)
    device = f"/job:worker/replica:0/task:{index}/device:CPU:0"
    store, compute = session.build([device], device)
    run_updates = all_reduce_function(strategy, store, compute, config)
    progress, stop = session.progress, False
    session.start()
    while not progress.completed and not stop:
        until = min(progress.applied + config.updates_at_once, progress.total)
        progress.scheduled(np.arange(progress.applied, until))
        told = drain is not None and drain.is_set()
        stop = bool(run_updates(tf.constant(until - progress.applied), tf.constant(float(told), tf.float64)))
        session.keep_up("training")
    if session.leads:
        session.end(stopped=stop)
    else:
        threading.Event().wait()  # the launcher stops it when worker 0 has ended


def _connect(config: RunConfig) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Return the strategy, once every worker has connected."""
    tf.config.threading.set_intra_op_parallelism_threads(config.cluster.intra_op_threads)
    if LAUNCHER_PID in os.environ:
        _count_no_heartbeats()
    ring = tf.distribute.experimental.CollectiveCommunication.RING
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=ring)
    )
    # The strategy takes over SIGTERM for preemption notices; this restores the handler from before.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    signal.siginterrupt(signal.SIGTERM, False)
    return strategy


def _count_no_heartbeats() -> None:
    """Turn off TensorFlow's heartbeat timeout; the launcher detects dead workers.

    TensorFlow's coordination service ends a job in which a worker sent no heartbeat for 10 s. By its clock that happens
    whenever the machine was suspended, or the run frozen, for longer. There is no public way to set the timeout.
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    workers = len(resolver.cluster_spec().as_dict()["worker"])
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(resolver.cluster_spec()),
        heartbeat_timeout_in_ms=_NEVER_MS,
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=workers)],
    )


def all_reduce_function(strategy: tf.distribute.Strategy, store: ParameterStore, compute: Compute, config: RunConfig):
    """Return the graph of some updates: (count int32 [], stop float64 [] above 0) → bool [], if any worker stops."""
    computation = Computation(compute, config)
    workers = config.cluster.workers
    (replica,) = store.slices

    def all_reduce(vector: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_reduce(_SUM, vector)

    def mean(*vectors: tf.Tensor) -> list[tf.Tensor]:
        """Return the means over all workers in float32. The vectors have one dtype and share one all-reduce."""
        summed = tf.cast(all_reduce(tf.concat(vectors, 0)), tf.float32)
        return tf.split(summed / workers, [tf.size(vector) for vector in vectors])

    def mean_result(result: StepResult) -> list[tf.Tensor]:
        """Return the gradient [n] and the fresh statistics [m], averaged over all workers."""
        if result.fresh.shape[0] == 0 or result.gradient.dtype == tf.float32:
            return mean(result.gradient, tf.cast(result.fresh, result.gradient.dtype))
        # In 8 bits a moving mean would be wrong by up to 0.3 % of a standard deviation, and the statistics are few.
        return [*mean(result.gradient), *mean(result.fresh)]

    def update(who: tf.Tensor) -> tf.Tensor:
        """Apply one update; return this worker's row of it."""
        identity = Identity(who[0], who[1])
        asked = tf.timestamp()
        with tf.control_dependencies([asked]):
            pulled = Pulled(*replica.pull(identity.worker))
        step_id = pulled.versions[0] * workers + identity.worker
        result, row = computation(step_id, pulled, identity, NOBODY, asked, asked)
        with tf.control_dependencies([row]):
            means = mean_result(result)
        entered = now_after(*means)
        gradient, fresh = (after([entered], vector) for vector in means)
        version = replica.update(gradient, result.learning_rate, fresh)
        return tf.concat([[tf.cast(version, tf.float64), 0.0, entered, now_after(version)], row], 0)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float64)])
    def run_updates(count: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        who = strategy.run(lambda: Identity.read().both())

        def body(position: tf.Tensor, rows: tf.TensorArray):
            row = strategy.run(update, args=(who,))
            return position + 1, rows.write(position, row)

        rows = tf.TensorArray(tf.float64, size=count, element_shape=[None])
        _, rows = tf.while_loop(lambda position, _: position < count, body, [0, rows], parallel_iterations=1)
        return strategy.run(share, args=(rows.stack(), stop, who[0]))

    def share(rows: tf.Tensor, stop: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
        """Write all workers' rows into every worker's ledger; return whether any worker wants to stop."""
        mine = tf.one_hot(worker, workers, dtype=tf.float64)
        table = rows[:, None, :] * mine[None, :, None]  # [count, workers, columns]
        summed = all_reduce(tf.concat([tf.reshape(table, [-1]), [stop]], 0))
        table = tf.reshape(summed[:-1], tf.shape(table))
        with tf.control_dependencies([replica.write_rows(table)]):
            return summed[-1] > 0

    return run_updates
