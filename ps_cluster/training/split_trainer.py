"""Train one network that is split over the workers: the chief's loop, a step's graph, and the placement of the parts.

The chief holds the graph of a step, whose operations are on all workers. Each worker holds the weights of its part, with
version and ledger, and updates them locally. Workers send each other activations and the gradients of activations:

    chief     step id ──► worker 0: batch, forward ──activations──► worker 1: forward, loss
    worker 1  gradient of its part ──► its local shard;  gradient of the activations ──► worker 0, which does the same
"""

from __future__ import annotations

import contextlib
import csv
import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.tasks import CHIEF, WORKER, Task
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.private_names import recorded_graphs
from ps_cluster.runs.run_dir import log_line
from ps_cluster.server.arrangement import Arrangement, Listed
from ps_cluster.server.ordering import now_after
from ps_cluster.server.shard import Push
from ps_cluster.server.store import ParameterStore
from ps_cluster.system.limits import FreeMemory
from ps_cluster.training.agreement import CompatibilityFingerprint
from ps_cluster.training.building import make_network, make_store
from ps_cluster.training.chief import Chief, LocalDispatcher
from ps_cluster.training.connecting import TaskAdmission, check_all_admitted, tell_end
from ps_cluster.training.devices import device_name
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.modes.split_network import SplitNetwork, SplitSettings
from ps_cluster.training.session import SessionStart
from ps_cluster.training.split_step import SplitStep
from ps_cluster.training.step import WorkerIdentity
from ps_cluster.training.worker import StepTimes, stacked, worker_columns

OWN_DEVICE = device_name(Task(CHIEF, 0))


def train(job: TrainingJob, mode: SplitNetwork) -> None:
    """Train until every update is applied, or until `job.drain` asks to stop and the steps under way have ended.

    Raises:
      UserError: the network can't be cut as the settings ask, or the checkpoint to resume from is missing or belongs to
        another network.
      tf.errors.OpError: a worker failed.
    """
    config, cluster, drain, leading = job.config, job.cluster, job.drain, job.leading
    log = job.run_dir.placement if SplitSettings.of(config).log_placement else None
    start = SessionStart(job, build=partial(build, mode, log))
    start.begin(resume=job.resume)
    spec = tf.train.ClusterSpec(cluster)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=job.index, protocol="grpc")
    workers = [Task(WORKER, worker) for worker in range(len(cluster[WORKER]))]
    check_all_admitted(workers, cluster, TaskAdmission(leading, CompatibilityFingerprint.of(config, job.dataset)))
    # Variables are created on processors, because TensorFlow's soft placement applies only to graphs.
    holders = [device_name(Task(WORKER, worker)) for worker in range(len(workers))]
    session = start.build(holders, OWN_DEVICE)
    Chief(config, session, LocalDispatcher()).run(drain)
    outcome = session.end(stopped=drain.is_set(), is_continued=leading.alone and not drain.for_good)
    tell_end(leading, workers, outcome, drain)


def build(
    mode: SplitNetwork, log: Path | None,
    config: RunConfig, dataset: PackedDataset, devices: Sequence[str], own_device: str, leader_prefix: str,
    free: FreeMemory | None,
) -> tuple[ParameterStore, SplitStep]:  # fmt: skip
    """Build the parameter store, with a shard for each worker's part, and the step through all parts of the network.

    See `building.build`.

    Args:
      mode: decides how the network is cut.
      log: the file to which the device of each operation is written; None if it is not written.
    """
    network, start = make_network(config, dataset, own_device, free=free)
    start = replace(start, leader_prefix=leader_prefix)
    try:
        step = mode.cut(config, dataset, network, own_device, log)
    except ValueError as error:
        raise UserError(str(error)) from error
    for worker, part in enumerate(step.parts):
        log_line(f"worker {worker}: {len(part.positions):,} weights on {part.device}: {part.layers}")
    positions = [part.positions for part in step.parts]
    states = start.cut(positions, [part.statistics for part in step.parts])
    arrangement = Arrangement([[Listed(of_part)] for of_part in positions])
    # A snapshot is taken between two steps, so all shards have the same version.
    store = make_store(config, dataset, network, devices, states, arrangement, FairLock())
    return store, step


class FairLock:
    """A lock for two threads. If one thread takes it again and again, the other gets its turn at the next release."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:  # a thread that waits for the lock keeps the other thread from asking for it
            self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()


class SplitDispatch:
    """Runs dispatches: pulls, computes and pushes one step after the other, each step as one graph over all workers."""

    def __init__(self, store: ParameterStore, step: SplitStep):
        """Create the graph of a step, and read the index and the pid of the worker that holds each shard."""
        self._store = store
        self._step = step
        self._holders = [part.device for part in store.shards]
        self._identities = [_identity(device) for device in self._holders]
        self._log = step.log
        scalars = [tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float64)]
        self._run_step = tf.function(self._one_step, autograph=False, input_signature=scalars)

    def __call__(self, step_ids: tf.Tensor, scheduled: tf.Tensor) -> None:
        """Run the steps of a dispatch.

        Args:
          step_ids: int64 [k].
          scheduled: float64 [], unix seconds, the time at which the chief handed them out.
        """
        for step_id in step_ids:
            with self._store.snapshot_lock, recorded(self._log) if self._log else contextlib.nullcontext():
                self._run_step(step_id, scheduled)
            self._log = None

    def _one_step(self, step_id: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        asked, pulled = [], []
        for holder, identity, part in zip(self._holders, self._identities, self._store.shards, strict=True):
            with tf.device(holder):
                asked.append(now_after(step_id))
                message = part.pull(tf.constant(identity.worker, tf.int64), [asked[-1]], step_id)
                pulled.append(part.read_message(message))
        weights = [answer.weights for answer in pulled]
        results = self._step.by_parts(step_id, weights, [answer.statistics for answer in pulled])
        pushed = []
        for number, (part, answer, result) in enumerate(zip(self._store.shards, pulled, results, strict=True)):
            with tf.device(self._holders[number]):
                computed = now_after(result.gradient)
                pulled_time = now_after(answer.weights)
                times = StepTimes(scheduled, asked[number], asked[number], pulled_time, computed, computed)
                row = stacked(worker_columns(self._identities[number], result, times))
                pushed.append(part.push(Push(step_id, answer.version, result.gradient, result.fresh, row)))
        return tf.stack(pushed)


def _identity(device: str) -> WorkerIdentity:
    """Return the `WorkerIdentity` of the worker whose process has this device, as Python numbers instead of tensors."""
    with tf.device(device):
        return WorkerIdentity(*WorkerIdentity.read().both().numpy().tolist())


@contextlib.contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Write to `file` the device of each operation in the functions that run for the first time within the block."""
    with recorded_graphs() as graphs:
        yield
    rows = {(node.device, node.op, node.name) for graph in graphs for node in graph.node if node.device}
    text = io.StringIO()
    csv.writer(text).writerows([("device", "type", "operation"), *sorted(rows)])
    write_whole(file, text.getvalue())
