"""Train synchronously by all-reduce with MultiWorkerMirroredStrategy, the usual alternative to parameter servers.

Every worker holds all parameters, computes the gradient of its part of the batch, and applies the mean of all workers'
gradients. It trains in rounds of several updates (training/all_reduce_graph.py). Worker 0 also writes the checkpoints,
the progress rows, the ledger and the result. TF_CONFIG names the workers.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
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
from ps_cluster.runs.run_dir import AGREEMENT
from ps_cluster.system.probes import until_none_works
from ps_cluster.system.stop_signals import Drain
from ps_cluster.training.agreement import CompatibilityFingerprint
from ps_cluster.training.all_reduce_graph import AllReduceUpdates, Request, RoundEnd
from ps_cluster.training.devices import device_name
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.round_watch import RoundWatch
from ps_cluster.training.saver import LONGEST_SAVE_S
from ps_cluster.training.session import Session, SessionStart
from ps_cluster.training.worker_group import WorkerGroup

_NEVER_MS = 2**31 - 1  # 25 days
_RECEIVED = "received.safetensors"
_LEAVE_WITHIN_S = 20.0  # less than the time after which a task counts as standing still
_CHECKS_WITHIN_LIMIT = 10  # how many times a `RoundWatch` checks the time within the shortest limit

RunUpdates: TypeAlias = Callable[[int, Request], RoundEnd]
"""A function that runs a round, as `AllReduceUpdates` does."""


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
    lost_after_s = leading.lost_after_s if leading.alone else math.inf  # a launcher detects lost workers
    strategy = _connect(config, cluster, index, lost_after_s=lost_after_s)
    group = WorkerGroup(strategy, index, config.cluster.workers)
    _agree(group, cluster["worker"], index)
    _share_checkpoint(group, start)
    device = device_name(Task(WORKER, index))
    session = start.build([device], device)
    run_updates = AllReduceUpdates(strategy, session.store, session.compute, config)
    session.start()

    def longest_round_s() -> float:
        """Return how many seconds a round may take. If it takes longer, another worker counts as lost."""
        return max(lost_after_s, session.progress.pace.longest_wait_s)

    def give_up(longest_s: float) -> None:
        abort_collectives(f"no round has ended for {longest_s:.0f} s")

    with RoundWatch(longest_round_s, give_up, check_every_s=lost_after_s / _CHECKS_WITHIN_LIMIT) as watch:
        request = train_until_end(config, session, run_updates, job.drain, watch)
    if session.leads:
        session.end(stopped=request.ends_training, is_continued=leading.alone and request is Request.CONTINUE_LATER)
    elif not leading.alone:
        threading.Event().wait()  # the launcher stops this worker once worker 0 has ended
    if leading.alone:
        # Worker 0 arrives here once it has written everything. From then on, it ignores the loss of another worker.
        with contextlib.suppress(*((tf.errors.OpError,) if session.leads else ())):
            group.wait()
        _leave(cluster["worker"], index)
        if index > 0 and request is Request.CONTINUE_LATER and not session.progress.completed:
            raise LostTask("worker-0 was stopped; start this task again to continue from its checkpoint")


def train_until_end(
    config: RunConfig, session: Session, run_updates: RunUpdates, drain: Drain, watch: RoundWatch
) -> Request:
    """Train until all updates are done, or until worker 0 asks all workers to stop. Return worker 0's last request.

    While worker 0 saves a state, the other workers wait for it in the next round. So worker 0 may save only after a
    round in which it requested SAVE: then all workers allow more time for the next round.
    """
    progress, request = session.progress, Request.CONTINUE
    # From this row on, the time limit for first updates replaces the limit for the start.
    session.keep_up("training", may_save=False)
    while not progress.completed and not request.ends_training:
        until = min(progress.applied + config.updates_at_once, progress.next_checkpoint_at)
        progress.note_scheduled(np.arange(progress.applied, until))
        request, digests = run_updates(until - progress.applied, _own_request(session, drain, until))
        saves = request is Request.SAVE
        watch.moved(saving_s=LONGEST_SAVE_S if saves else 0.0)
        session.note_problem(different_replica(digests, until))
        session.keep_up("training", may_save=saves)
        if session.leads and saves:
            watch.moved()  # from now on, worker 0 notices a lost worker as fast as in other rounds
    return request


def _own_request(session: Session, drain: Drain, until: int) -> Request:
    """Return what this worker requests at the end of the next round. `until`: the number of updates applied by then."""
    if not session.leads:
        return Request.CONTINUE
    if session.broken:
        return Request.STOP
    if drain.is_set():
        return Request.STOP if drain.for_good else Request.CONTINUE_LATER
    return Request.SAVE if session.saver.may_be_due_at(until) else Request.CONTINUE


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
    config: RunConfig, cluster: Mapping[str, list[str]], index: int, *, lost_after_s: float
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Return the strategy, once every worker has connected.

    The strategy has one replica in this worker, on the processor, even if the network is computed on a GPU. By default
    it would have a replica on each GPU that this worker sees.

    Args:
      lost_after_s: the seconds of silence after which a worker counts as lost; infinite if a launcher detects lost
        workers.
    """
    tf.config.threading.set_intra_op_parallelism_threads(config.cluster.intra_op_threads)
    # For TensorFlow's heartbeats, time during which the machine was suspended or the run was frozen is silence, too. So
    # under a launcher, which detects dead workers by other means, silence never makes a worker count as lost.
    limit_silence(round(min(_NEVER_MS, 1000 * lost_after_s)), config.cluster.workers)
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
