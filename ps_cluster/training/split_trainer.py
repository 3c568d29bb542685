"""Training with one network that is split over the workers: the chief's loop, a step's graph, and who has which part.

The chief holds the graph of a step, whose operations are on all workers. Each worker holds the weights of its part,
with version and ledger, and updates them where they are. Between workers go activations and their gradients:

    chief     step id ──► worker 0: batch, forward ──activations──► worker 1: forward, loss
    worker 1  gradient of its part ──► its own slice;  gradient of the activations ──► worker 0, which does the same
"""

from __future__ import annotations

import contextlib
import csv
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import WORKER, Task
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.registry import import_object
from ps_cluster.data.batches import checksum_of
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.models.cuts import Block, NetworkPart, StagedNetwork, WideNetwork, balanced, blocks_of
from ps_cluster.models.failures import COMPUTATION
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.models.judges import MicroBatch
from ps_cluster.private_names import recorded_graphs
from ps_cluster.runs.messages import LeaderStart
from ps_cluster.runs.run_dir import RunDir, say
from ps_cluster.server.shard import now_after
from ps_cluster.server.store import ParameterStore
from ps_cluster.system.environment import Drain
from ps_cluster.training.agreement import CompatibilityFingerprint
from ps_cluster.training.chief import Chief, LocalDispatcher
from ps_cluster.training.membership import TaskAdmission, check_all, tell_end
from ps_cluster.training.modes import DEVICE, LayerPlace, LayersSettings, SplitNetwork
from ps_cluster.training.session import SessionStart, make_network, make_store
from ps_cluster.training.step import StepResult, TrainBatch, TrainStep, WorkerIdentity, clipping_of, rows_in
from ps_cluster.training.worker import AsynchronousSteps, Compute, worker_row

OWN_DEVICE = "/job:chief/task:0/device:CPU:0"


def train(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    cluster: dict[str, list[str]],
    index: int = 0,
    *,
    resume: bool,
    drain: Drain,
    leading: LeaderStart = LeaderStart(),
) -> None:
    """Train until every update is applied, or until `drain` is set and the steps under way have ended.

    Raises:
      UserError: the network can't be cut as asked for, or the checkpoint to resume from is missing or of another one.
      tf.errors.OpError: a worker failed.
    """
    start = SessionStart(config, run_dir, dataset, term=leading.term, build=partial(build, log=run_dir.placement))
    start.begin(resume=resume)
    spec = tf.train.ClusterSpec(cluster)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=index, protocol="grpc")
    workers = [Task(WORKER, worker) for worker in range(len(cluster[WORKER]))]
    check_all(workers, cluster, TaskAdmission(leading, CompatibilityFingerprint.of(config, dataset)))
    # Variables are made on processors: soft placement is of graphs alone.
    holders = [device_of(worker) for worker in range(len(workers))]
    session = start.build(holders, OWN_DEVICE)
    Chief(config, session, LocalDispatcher()).run(drain)
    outcome = session.end(stopped=drain.is_set(), goes_on=leading.alone and not drain.for_good)
    if leading.alone and (outcome != "stopped" or drain.for_good):
        tell_end(leading, workers, outcome)


def build(
    config: RunConfig,
    dataset: PackedDataset,
    holders: Sequence[str],
    own_device: str,
    session: str,
    *,
    log: Path | None = None,
) -> tuple[ParameterStore, Compute]:
    """Return the store, with a slice for each worker's part on each of `holders`, and the step through all of them.

    Args:
      session: as for `session.build`.
      log: the file to write the device of each operation to, if that is asked for.
    """
    mode = cast(SplitNetwork, config.mode_kind)
    network, start = make_network(config, dataset, own_device)
    start = replace(start, session=session)
    try:
        step = import_object(mode.cut)(config, dataset, network, own_device, len(holders))
    except ValueError as error:
        raise UserError(str(error)) from error
    for line in _lines(step.parts, names_of_all_devices()):
        say(line)
    positions = [part.positions for part in step.parts]
    store = make_store(
        config, dataset, network, holders, start.cut(positions, [part.statistics for part in step.parts]), positions
    )
    store.in_turn = FairLock()  # a snapshot between two steps has the same version of all slices
    function = SplitFunction(store, step, config, holders, log if mode.settings(config).log_placement else None)
    return store, cast(Compute, function)


def _lines(parts: Sequence[NetworkPart], there: Sequence[str]) -> list[str]:
    """Return a line on each worker's part. `there`: the devices that the cluster has."""
    lines = []
    for worker, part in enumerate(parts):
        soft = "" if part.device in there else ", which is not there: soft placement takes its processor"
        lines.append(f"worker {worker}: {len(part.positions):,} weights on {part.device}{soft}: {part.layers}")
    return lines


class SplitSteps(AsynchronousSteps):
    """Dispatches of step ids, each for all workers."""

    def function(self, store: ParameterStore, compute: Compute) -> Callable[..., Any]:
        return cast("SplitFunction", compute)


class SplitFunction:
    """A dispatch: pulls, computes and pushes one step after the other, each as one graph over all workers."""

    def __init__(
        self, store: ParameterStore, step: SplitStep, config: RunConfig, holders: Sequence[str], log: Path | None
    ):
        """Read which process holds each slice. `holders`: their devices. `log`: as for `build`."""
        self._store = store
        self._step = step
        self._holders = holders
        self._identities = [_identity(device) for device in holders]
        self._log = log
        scalars = [tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float64)]
        self._run_step = tf.function(self._one, autograph=False, input_signature=scalars)

    def __call__(self, step_ids: tf.Tensor, scheduled: tf.Tensor) -> None:
        """Run steps. Args: int64 [k], and when they were handed out, float64 []."""
        for step_id in step_ids:
            with self._store.in_turn, recorded(self._log) if self._log else contextlib.nullcontext():
                self._run_step(step_id, scheduled)
            self._log = None

    def _one(self, step_id: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        asked, pulled = [], []
        for holder, identity, part in zip(self._holders, self._identities, self._store.slices, strict=True):
            with tf.device(holder):
                asked.append(now_after(step_id))
                message = part.pull(tf.constant(identity.worker, tf.int64), [asked[-1]], step_id)
                pulled.append(part.read_message(message))
        weights, statistics, versions = zip(*pulled)
        results = self._step.by_parts(step_id, weights, statistics)
        pushed = []
        for number, (part, result) in enumerate(zip(self._store.slices, results, strict=True)):
            with tf.device(self._holders[number]):
                computed = now_after(result.gradient)
                row = worker_row(
                    self._identities[number], result,
                    scheduled_time=scheduled, asked_time=asked[number], admitted_time=asked[number],
                    pulled_time=now_after(weights[number]), computed_time=computed, pushed_time=computed,
                )  # fmt: skip
                pushed.append(part.push(step_id, versions[number][0], result.gradient, result.fresh, row))
        return tf.stack(pushed)


def _identity(device: str) -> WorkerIdentity:
    """Return what the process on a device reads in its own folder, as numbers."""
    with tf.device(device):
        return WorkerIdentity(*WorkerIdentity.read().both().numpy().tolist())


# A lock for two threads of which one takes it again and again: the other gets its turn at the next release.


class FairLock:
    """A context manager. A plain lock may be taken again by the thread that has just released it, for ever."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:  # who waits for the lock keeps others from asking for it
            self._held.acquire()

    def __exit__(self, *error: object) -> None:
        self._held.release()


# Decide which worker has which part of a network; find out which device each operation came to be on.


def first_blocks(blocks: Sequence[Block], places: Sequence[LayerPlace], workers: int) -> list[int]:
    """Return the number of each worker's first block.

    Args:
      places: from these layers on; none: by the blocks' numbers of weights.
    Raises:
      ValueError: with the setting and its value, if some worker would have no weights, or no such layer is there.
    """
    most = sum(block.weights > 0 for block in blocks)
    if workers > most:
        raise ValueError(
            f"cluster.workers: got {workers}: the network has {most} parts with weights between which it can be cut: "
            f"take at most {most}"
        )
    if not places:
        return balanced(blocks, workers)
    firsts = _asked_for(blocks, places)
    for worker in range(workers):
        until = firsts.get(worker + 1, len(blocks)) if worker + 1 < workers else len(blocks)
        if worker not in firsts or not sum(block.weights for block in blocks[firsts[worker] : until]):
            raise ValueError(
                f"mode.placement: worker {worker} would have no weights: place some of {_with_weights(blocks)} there"
            )
    return [firsts[worker] for worker in range(workers)]


def _asked_for(blocks: Sequence[Block], places: Sequence[LayerPlace]) -> dict[int, int]:
    """Return worker → its first block, as the user asks for it; worker 0 has the first layers."""
    number = {layer: index for index, block in enumerate(blocks) for layer in block.layers}
    workers: dict[int, int] = {}
    for place in places:
        if place.layer not in number:
            raise ValueError(
                f"mode.placement: got '{place.layer}': the network has no such layer; it has {_with_weights(blocks)}"
            )
        block = number[place.layer]
        if workers.setdefault(block, place.worker) != place.worker:
            together = ", ".join(blocks[block].layers)
            raise ValueError(f"mode.placement: got '{place.layer}={place.worker}': {together} can't be cut apart")
    firsts = {0: 0}
    for block, worker in sorted(workers.items()):
        if worker < max(firsts):
            raise ValueError(
                f"mode.placement: got '{blocks[block].layers[0]}={worker}': the layers before are on worker "
                f"{max(firsts)}, and a step goes through the workers once, in order"
            )
        firsts.setdefault(worker, block)
    return firsts


def _with_weights(blocks: Sequence[Block]) -> str:
    return ", ".join(layer for block in blocks if block.weights for layer in block.layers)


def devices_of(settings: LayersSettings, workers: int, there: Sequence[str]) -> list[str]:
    """Return the device that each worker is asked to compute on.

    Args:
      there: the names of all devices of the cluster.
    Raises:
      UserError: a device is not there, and `soft_placement` is off.
    """
    wanted = [device_of(worker, settings.devices.get(worker, DEVICE)) for worker in range(workers)]
    for worker, device in enumerate(wanted):
        if device not in there and not settings.soft_placement:
            own = ", ".join(name.rpartition("/device:")[2] for name in there if name.startswith(f"{task_of(worker)}/"))
            raise UserError(
                f"mode.placement: got '{settings.devices[worker]}' of worker {worker}, which has {own}: ask for what it "
                "has, or give --soft-placement"
            )
    return wanted


def device_of(worker: int, name: str = DEVICE) -> str:
    """Return the whole name of a worker's device."""
    return f"{task_of(worker)}/device:{name}"


def task_of(worker: int) -> str:
    """Return a worker's name in TensorFlow."""
    return f"/job:worker/replica:0/task:{worker}"


@contextlib.contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Write the device of each operation of the functions that run for the first time in the block."""
    with recorded_graphs() as graphs:
        yield
    rows = {(node.device, node.op, node.name) for graph in graphs for node in graph.node if node.device}
    text = io.StringIO()
    csv.writer(text).writerows([("device", "type", "operation"), *sorted(rows)])
    write_whole(file, text.getvalue())


def names_of_all_devices() -> list[str]:
    """Return the names of the devices of all tasks that this process is connected to."""
    return [device.name for device in tf.config.list_logical_devices()]


# One training step of a network in parts, and how a mode cuts the network.


class SplitStep(TrainStep):
    """Computes a step with a vector of weights for each part of a network; a batch may go in micro-batches, as in GPipe.

    The gradient is the mean over the micro-batches (Huang et al. 2019, arXiv:1811.06965, section 2.2). Normalisation
    takes the statistics of each micro-batch, and the moving ones take in their mean (section 2.3 there).
    """

    def __init__(
        self,
        config: RunConfig,
        whole: FlatNetwork,
        spec: ExampleSpec,
        *,
        train_examples: int,
        network: StagedNetwork | WideNetwork,
        micro_batches: int = 1,
    ):
        """Prepare. `network`: made of the `whole` one."""
        super().__init__(config, whole, spec, train_examples=train_examples)
        self.parts = network.parts
        self._parted = network
        self._micro_batches = micro_batches
        self._clips = [clipping_of(config.optimizer, part.layout) for part in self.parts]

    def by_parts(
        self, step: tf.Tensor, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor]
    ) -> list[StepResult]:
        """Compute a step; return each part's own gradient and statistics, with loss and metric of the whole.

        Args:
          step: int64 []. weights, statistics: of each part.
        """
        with tf.device(self.parts[0].device):
            batch = self.batch(step)
            batches, checksum = self._cut(batch), checksum_of(batch.ids)
            rate = self.learning_rate(step)
        parts = _parts_of(batches)
        losses, metrics, examples, gradients, fresh = zip(
            *(
                self._of_micro_batch(step, number, batch, part, weights, statistics)
                for number, (batch, part) in enumerate(zip(batches, parts, strict=True))
            )
        )
        with tf.device(self._parted.last):
            loss, metric, count = _mean(losses), tf.add_n(metrics), tf.add_n(examples)
        results = []
        for part, clip, of_part, its in zip(self.parts, self._clips, zip(*gradients), zip(*fresh), strict=True):
            with tf.device(part.device):
                results.append(StepResult(clip(_mean(of_part)), _mean(its), loss, metric, rate, count, checksum))
        return results

    def _cut(self, batch: TrainBatch) -> list[TrainBatch]:
        """Return the micro-batches of a batch, of equal size."""
        count = self._micro_batches
        inputs = {name: tf.split(rows, count) for name, rows in batch.inputs.items()}
        targets = tf.split(batch.targets, count)
        weights = [None] * count if batch.weights is None else tf.split(batch.weights, count)
        ids = tf.split(batch.ids, count)
        return [
            TrainBatch({name: rows[part] for name, rows in inputs.items()}, targets[part], weights[part], ids[part])
            for part in range(count)
        ]

    def _of_micro_batch(
        self,
        step: tf.Tensor,
        number: int,
        batch: TrainBatch,
        part: MicroBatch | None,
        weights: Sequence[tf.Tensor],
        statistics: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Return loss, metric and number of examples of a micro-batch, and each part's gradient and fresh statistics."""
        # With a single one the random state is that of a `TrainStep`, else each has its own.
        draws = tf.cast(step, tf.int32) * self._micro_batches + number
        with tf.device(self._parted.last), tf.name_scope(COMPUTATION):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                random_state = tf.stack([self._config.training.seed, draws])
                passed = self._parted.forward(weights, statistics, batch.inputs, random_state)
                loss = sum(passed.losses, self._judge.loss(batch.targets, passed.outputs, batch.weights, part))
            gradients = tape.gradient(loss, weights)
            metric = tf.reduce_sum(self._judge.metric(batch.targets, passed.outputs))
            return loss, metric, rows_in(passed.outputs), gradients, passed.fresh


def _parts_of(batches: Sequence[TrainBatch]) -> list[MicroBatch | None]:
    """Return what makes the loss of each micro-batch its part of the batch's; None for a whole batch."""
    count = len(batches)
    if count == 1:
        return [None]
    sums = [tf.constant(0.0) if batch.weights is None else tf.reduce_sum(batch.weights) for batch in batches]
    whole = tf.add_n(sums)
    return [MicroBatch(tf.constant(float(count)), count * tf.math.divide_no_nan(one, whole)) for one in sums]


def _mean(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    return vectors[0] if len(vectors) == 1 else tf.add_n(vectors) / len(vectors)


def cut_by_layers(
    config: RunConfig, dataset: PackedDataset, network: FlatNetwork, device: str, workers: int
) -> SplitStep:
    """Cut a network for `workers`, see `SplitNetwork.cut`."""
    settings: LayersSettings = config.mode_kind.settings(config)
    tf.config.set_soft_device_placement(settings.soft_placement)
    try:
        blocks = blocks_of(network.model)
    except ValueError as error:
        raise ValueError(f"model.name: got '{config.model.name}': {error}") from error
    firsts = first_blocks(blocks, settings.places, workers)
    devices = devices_of(settings, workers, names_of_all_devices())
    with tf.device(device):
        staged = StagedNetwork(network, blocks, firsts, devices)
    return SplitStep(
        config, network, dataset.spec,
        train_examples=dataset.train_examples, network=staged, micro_batches=settings.micro_batches,
    )  # fmt: skip


def cut_by_width(
    config: RunConfig, dataset: PackedDataset, network: FlatNetwork, device: str, workers: int
) -> SplitStep:
    """Cut a network for `workers`, see `SplitNetwork.cut`."""
    devices = [device_of(worker) for worker in range(workers)]
    try:
        with tf.device(device):
            wide = WideNetwork(network, devices, config.mode_kind.settings(config).least_units)
    except ValueError as error:
        raise ValueError(f"model.name: got '{config.model.name}': {error}") from error
    return SplitStep(config, network, dataset.spec, train_examples=dataset.train_examples, network=wide)
