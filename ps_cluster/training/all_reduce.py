"""Train synchronously by all-reduce with MultiWorkerMirroredStrategy, the usual alternative to parameter servers.

Every worker holds all parameters, computes the gradient of its part of the batch, and applies the mean of all workers'
gradients. It makes several updates in one graph. For each update, it

1. pulls the weights from its local shard, and computes the gradient,
2. gets the mean of all workers' gradients by all-reduce,
3. applies the mean to its local shard, and keeps the update's row for the ledger, the table of applied gradients.

After these updates, one more all-reduce exchanges all their rows, every worker's request (continue or stop), and
digests of the weights.

A step usually needs one all-reduce, of the flat gradient together with the moving statistics. If gradients are not sent
in float32 and the network has moving statistics, a second all-reduce sends these statistics in float32. Worker 0 also
writes the checkpoints, the progress rows, the ledger and the result. TF_CONFIG names the workers.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import WORKER, Task
from ps_cluster.errors import LostTask, UserError
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import write_whole
from ps_cluster.private_names import abort_collectives, limit_silence, wait_at_barrier
from ps_cluster.runs import checkpoints
from ps_cluster.runs.ledger import NOT_SCHEDULED, ServerColumns
from ps_cluster.runs.run_dir import AGREEMENT
from ps_cluster.server.ordering import after, now_after
from ps_cluster.server.shard import columns_by_name
from ps_cluster.server.store import ParameterStore, Pulled, StepPush
from ps_cluster.system.probes import until_none_works
from ps_cluster.system.stop_signals import Drain
from ps_cluster.training.agreement import CompatibilityFingerprint
from ps_cluster.training.devices import device_name, graph_of_dispatch
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.modes.sync import ReplicaShard
from ps_cluster.training.session import Session, SessionStart
from ps_cluster.training.step import Compute, WorkerIdentity
from ps_cluster.training.worker import TimedComputation

_NEVER_MS = 2**31 - 1  # 25 days
_SUM = tf.distribute.ReduceOp.SUM
# The requests of worker 0. The other workers always request CONTINUE, which is 0, so the sum is the request of worker
# 0.
CONTINUE, STOP, CONTINUE_LATER = 0.0, 1.0, 2.0
_RECEIVED = "received.safetensors"
_LEAVE_WITHIN_S = 20.0  # less than the time after which a task counts as standing still
_WORD_BYTES = 8
_CHECKS_WITHIN_LIMIT = 10  # how many times a `RoundWatch` checks the time within its limit

RunUpdates: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def train(job: TrainingJob) -> None:
    """Train as one of the workers. Return when all updates are applied, or soon after worker 0 was asked to stop.

    Only worker 0 reads and writes checkpoints. If it resumes from a checkpoint, it sends the checkpoint to the other
    workers.

    Raises:
      UserError: the checkpoint to resume from is missing or belongs to another model, or the versions, settings, files
        or data of two workers differ.
      LostTask: worker 0 was stopped, and training will continue later. Worker 0 itself does not raise this.
      tf.errors.OpError: another worker failed.
    """
    config, cluster, index, leading = job.config, job.cluster, job.index, job.leading
    start = SessionStart(job, leads=index == 0)
    start.begin(resume=job.resume and start.leads)
    lost_after_s = leading.lost_after_s if leading.alone else None
    strategy = _connect(config, cluster, index, lost_after_s=lost_after_s)
    group = WorkerGroup(strategy, index, config.cluster.workers)
    _agree(group, cluster["worker"], index)
    _share_checkpoint(group, start)
    device = device_name(Task(WORKER, index))
    session = start.build([device], device)
    run_updates = all_reduce_function(strategy, session.store, session.compute, config)
    session.start()

    def longest_round_s() -> float:
        """Return the seconds without a finished round after which another worker counts as lost."""
        limit_s = threading.TIMEOUT_MAX if lost_after_s is None else lost_after_s
        return max(limit_s, session.progress.pace.longest_wait_s)

    def give_up(longest_s: float) -> None:
        abort_collectives(f"no round has ended for {longest_s:.0f} s")

    with RoundWatch(longest_round_s(), give_up) as watch:
        request = train_until_end(config, session, run_updates, job.drain, lambda: watch.moved(longest_round_s()))
    if session.leads:
        session.end(stopped=request != CONTINUE, is_continued=leading.alone and request == CONTINUE_LATER)
    elif not leading.alone:
        threading.Event().wait()  # the launcher stops this worker once worker 0 has ended
    if leading.alone:
        # Worker 0 arrives here once it has written everything. From then on, it ignores the loss of another worker.
        with contextlib.suppress(*((tf.errors.OpError,) if session.leads else ())):
            group.wait()
        _leave(cluster["worker"], index)
        if index > 0 and request == CONTINUE_LATER and not session.progress.completed:
            raise LostTask("worker-0 was stopped; start this task again to continue from its checkpoint")


def train_until_end(
    config: RunConfig, session: Session, run_updates: RunUpdates, drain: Drain, moved: Callable[[], None]
) -> float:
    """Train until all updates are done, or until worker 0 asks all workers to stop.

    Returns worker 0's last request: CONTINUE, STOP or CONTINUE_LATER.
    """
    progress, leader_request = session.progress, CONTINUE
    session.keep_up("training")  # from this row on, the time limit for first updates replaces the limit for the start
    while not progress.completed and leader_request == CONTINUE:
        until = min(progress.applied + config.updates_at_once, progress.next_checkpoint_at)
        progress.note_scheduled(np.arange(progress.applied, until))
        request = CONTINUE if not drain.is_set() else STOP if drain.for_good else CONTINUE_LATER
        if session.leads and session.broken:
            request = STOP
        leader_request, *digests = (
            run_updates(tf.constant(until - progress.applied), tf.constant(request, tf.float64)).numpy().tolist()
        )
        moved()
        session.note_problem(different_replica(digests, until))
        session.keep_up("training")
    return leader_request


def different_replica(digests: Sequence[float], updates: int) -> str | None:
    """Return a line that names the workers whose weights differ from those of most workers; None if there are none.

    The proof, a check after the training, reports this line.

    Args:
      digests: the digest of each worker's weights.
      updates: the number of updates applied.
    """
    (most, _), *others = Counter(digests).most_common()
    if not others:
        return None
    named = ", ".join(f"worker-{index}" for index, digest in enumerate(digests) if digest != most)
    return f"after update {updates - 1} the weights of {named} differ from those of worker-{digests.index(most)}"


def _agree(group: WorkerGroup, workers: list[str], index: int) -> None:
    """Raise UserError at every worker if the versions, settings, files or data of any worker differ from worker 0's."""
    content_here = Path(AGREEMENT).read_bytes()
    content_of_leader = group.broadcast(content_here)
    try:
        fingerprint = CompatibilityFingerprint.from_json(content_here)
        difference = CompatibilityFingerprint.from_json(content_of_leader).difference(
            fingerprint, here="at worker-0", at=f"worker-{index}"
        )
    except Malformed as error:  # another version of this package may write another format
        difference = f"it can't read the {AGREEMENT} of worker-0: {error}"
    for other, content in enumerate(group.gather((difference or "").encode())):
        if content:
            _leave(workers, index)
            raise UserError(f"worker-{other} can't take part: {content.decode()}: make it the same for every task")


def _share_checkpoint(group: WorkerGroup, start: SessionStart) -> None:
    """If worker 0 resumes from a checkpoint, send it to the other workers, so that they continue from it too."""
    content = group.broadcast(checkpoints.to_bytes(start.resumed) if start.resumed else b"")
    if content and not start.leads:
        received = Path(_RECEIVED)  # in the task's workspace
        write_whole(received, content)
        start.continue_from(checkpoints.load(received))
        received.unlink()


def _leave(workers: list[str], index: int) -> None:
    """Wait until no other worker needs this worker any more. Then it may end.

    A worker that has finished an all-reduce may be ahead of another worker that still needs data from it. And TensorFlow
    aborts a worker that outlives worker 0, so worker 0 waits for the other workers to end.
    """
    with contextlib.suppress(tf.errors.OpError):  # another worker was lost, or runs a version that does not wait
        wait_at_barrier("leave", _LEAVE_WITHIN_S)
    if index == 0:
        until_none_works(workers[1:], _LEAVE_WITHIN_S)


def _connect(
    config: RunConfig, cluster: Mapping[str, list[str]], index: int, *, lost_after_s: float | None
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Return the strategy, once every worker has connected.

    The strategy has one replica in this worker, on the processor, even if the network is computed on a GPU. By default
    it would have a replica on each GPU that this worker sees.

    Args:
      lost_after_s: the seconds of silence after which a worker counts as lost; None if a launcher detects lost workers.
    """
    tf.config.threading.set_intra_op_parallelism_threads(config.cluster.intra_op_threads)
    # For TensorFlow's heartbeats, time during which the machine was suspended or the run was frozen is silence, too. So
    # under a launcher, which detects dead workers by other means, silence never makes a worker count as lost.
    limit_silence(_NEVER_MS if lost_after_s is None else round(1000 * lost_after_s), config.cluster.workers)
    ring = tf.distribute.experimental.CollectiveCommunication.RING
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        cluster_resolver=tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type=WORKER, task_id=index, rpc_layer="grpc"
        ),
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=ring),
    )
    # The strategy takes over SIGTERM for preemption notices. This restores the previous handler.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    signal.siginterrupt(signal.SIGTERM, False)
    return strategy


def all_reduce_function(
    strategy: tf.distribute.Strategy, store: ParameterStore, compute: Compute, config: RunConfig
) -> RunUpdates:
    """Return the graph that runs several updates, and then exchanges requests and digests between all workers.

    Its arguments are the number of updates, int32 [], and this worker's request to continue or to stop, float64 []
    (CONTINUE, STOP or CONTINUE_LATER). It returns float64 [1 + workers]. The first element of the result is the request
    of worker 0. It is computed as the sum of all requests, because the other workers always request CONTINUE, which
    is 0. The other elements are digests of the weights after the updates, one for each worker.
    """
    computation = TimedComputation(compute, config, store)
    workers = config.cluster.workers
    replica = store.only_shard(ReplicaShard)

    def all_reduce(vector: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_reduce(_SUM, vector)

    def mean(*vectors: tf.Tensor) -> list[tf.Tensor]:
        """Return the mean of each vector over all workers, in float32. One all-reduce sends all these vectors.

        `vectors`: vectors of the same dtype.
        """
        summed = tf.cast(all_reduce(tf.concat(vectors, 0)), tf.float32)
        means: list[tf.Tensor] = tf.split(summed / workers, [tf.size(vector) for vector in vectors])
        return means

    def mean_over_workers(push: StepPush) -> list[tf.Tensor]:
        """Return the gradient [n] and what the step adds to the moving statistics [m], averaged over all workers."""
        if push.fresh.shape[0] == 0 or push.gradient.dtype == tf.float32:
            return mean(push.gradient, tf.cast(push.fresh, push.gradient.dtype))
        # With bfloat16's 8 bits a moving mean would be wrong by up to 0.3 % of a standard deviation. Statistics are
        # few, so they are sent in float32.
        return [*mean(push.gradient), *mean(push.fresh)]

    def update(who: tf.Tensor) -> tf.Tensor:
        """Apply one update; return this worker's ledger row for it. `who`: int64 [2], see `WorkerIdentity.both`."""
        identity = WorkerIdentity(who[0], who[1])
        asked = tf.timestamp()
        with tf.control_dependencies([asked]):
            answer = replica.read_message(replica.pull(identity.worker))
        pulled = Pulled(answer.weights, answer.statistics, answer.numbers[:1])  # the version of the only shard
        step_id = pulled.versions[0] * workers + identity.worker
        push, _ = computation(step_id, pulled, identity, NOT_SCHEDULED, asked, asked)
        with tf.control_dependencies([push.columns]):
            means = mean_over_workers(push)
        entered = now_after(*means)
        gradient, fresh = (after([entered], vector) for vector in means)
        rate = columns_by_name(push.columns).learning_rate
        version = replica.apply_mean(gradient, tf.cast(rate, tf.float32), fresh)
        staleness = version - 1 - pulled.versions[0]
        columns = ServerColumns(version, staleness, 1.0, entered, now_after(version))
        return tf.concat([tf.stack([tf.cast(value, tf.float64) for value in columns]), push.columns], 0)

    def run_updates(count: tf.Tensor, request: tf.Tensor) -> tf.Tensor:
        who = strategy.run(lambda: WorkerIdentity.read().both())

        def body(position: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            row = strategy.run(update, args=(who,))
            return position + 1, rows.write(position, row)

        rows = tf.TensorArray(tf.float64, size=count, element_shape=[None])
        _, rows = tf.while_loop(lambda position, _: position < count, body, [0, rows], parallel_iterations=1)
        return strategy.run(share, args=(rows.stack(), request, who[0]))

    def share(rows: tf.Tensor, request: tf.Tensor, worker: tf.Tensor) -> tf.Tensor:
        """Write all workers' rows into every worker's ledger.

        Return the sum of all workers' requests, and a digest of the weights for each worker.
        """
        mine = tf.one_hot(worker, workers, on_value=True, off_value=False)
        # Not a product with `mine`: there, a NaN in one worker's rows would spread to all rows, because NaN x 0 is NaN.
        table = tf.where(mine[None, :, None], rows[:, None, :], tf.zeros([], tf.float64))  # [count, workers, columns]
        request_and_digest = tf.concat([[request], tf.where(mine, replica.digest(), tf.zeros([], tf.float64))], 0)
        summed = all_reduce(tf.concat([tf.reshape(table, [-1]), request_and_digest], 0))
        table = tf.reshape(summed[: -1 - workers], tf.shape(table))
        with tf.control_dependencies([replica.write_rows(table)]):
            return tf.identity(summed[-1 - workers :])

    return graph_of_dispatch(config, tf.TensorSpec([], tf.int32), run_updates)


class WorkerGroup:
    """The group of all workers of a strategy. It exchanges bytes between the workers outside of steps.

    `index` is the index of the worker that creates this object, and `workers` is the number of workers.
    All workers must call the same methods in the same order.

    Raises from every method:
      tf.errors.OpError: another worker was lost.
    """

    def __init__(self, strategy: tf.distribute.Strategy, index: int, workers: int):
        self._index = index
        self._workers = workers

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
        def summed(values: tf.Tensor) -> tf.Tensor:
            def all_reduce() -> tf.Tensor:
                local = tf.identity(values)  # the all-reduce needs a tensor on the worker's device
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, local)

            return strategy.run(all_reduce)

        self._summed = summed

    def broadcast(self, content: bytes, source: int = 0) -> bytes:
        """Return, at every worker, the content that worker `source` passes. What other workers pass is ignored."""
        sent = content if self._index == source else b""
        length = int(self._sum([len(sent)])[0])
        # The content is sent as int64, padded with zeros up to a whole word.
        words = np.frombuffer(sent.ljust(-(-length // _WORD_BYTES) * _WORD_BYTES, b"\0"), np.int64)
        return self._sum(words).tobytes()[:length]

    def gather(self, content: bytes) -> list[bytes]:
        """Return the contents that the workers passed to this method, in the order of the workers."""
        return [self.broadcast(content, source) for source in range(self._workers)]

    def wait(self) -> None:
        """Wait until every worker calls this method."""
        self._sum([0])

    def _sum(self, values: np.ndarray | list[int]) -> np.ndarray:
        """Return the sum of each value over all workers, int64 [k]. An empty list needs no all-reduce."""
        return self._summed(tf.constant(values, tf.int64)).numpy() if len(values) else np.zeros(0, np.int64)


class RoundWatch:
    """A watchdog for rounds of all-reduce, because TensorFlow's collectives wait for a lost worker for ever.

    If `moved` was not called for `limit_s` seconds inside the `with` block, a separate thread calls `give_up` once.
    """

    def __init__(self, limit_s: float, give_up: Callable[[float], None], clock: Callable[[], float] = time.monotonic):
        """Create a watch.

        Args:
          limit_s: the longest time that the first round may take, in seconds. `moved` sets the limit of the next round.
          give_up: is called with the limit that was exceeded, in seconds.
        """
        self._limit_s = limit_s
        self._give_up = give_up
        self._clock = clock
        self._over = threading.Event()
        self._moved_s = clock()
        self._thread = threading.Thread(target=self._watch, name="rounds", daemon=True)

    def moved(self, limit_s: float) -> None:
        """Record that a round has ended. `limit_s`: the longest time that the next round may take, in seconds."""
        self._moved_s, self._limit_s = self._clock(), limit_s

    def __enter__(self) -> RoundWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()  # otherwise a watch that has just woken up could give up after the last round

    def _watch(self) -> None:
        while not self._over.wait(self._limit_s / _CHECKS_WITHIN_LIMIT):
            if self._clock() - self._moved_s > self._limit_s:
                self._give_up(self._limit_s)
                return
