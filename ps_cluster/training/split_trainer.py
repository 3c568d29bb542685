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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import WORKER, Task
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.registry import import_object
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.models.cuts import Block, WideNetwork, balanced, blocks_of, stages_of
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.private_names import recorded_graphs
from ps_cluster.runs.messages import LeaderStart
from ps_cluster.runs.run_dir import RunDir, say
from ps_cluster.server.shard import ParameterStore, now_after
from ps_cluster.system.environment import Drain
from ps_cluster.training.agreement import CompatibilityFingerprint
from ps_cluster.training.chief import Chief, LocalDispatcher
from ps_cluster.training.membership import TaskAdmission, check_all, tell_end
from ps_cluster.training.modes import DEVICE, LAYERS, WIDTH, LayersSettings, Place, SplitNetwork
from ps_cluster.training.session import SessionStart, make_network, make_store
from ps_cluster.training.step import Clip, StepResult, TrainBatch, TrainStep, WorkerIdentity, clipping_of
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
    start = SessionStart(config, run_dir, dataset, epoch=leading.epoch, build=partial(build, log=run_dir.placement))
    start.begin(resume=resume)
    spec = tf.train.ClusterSpec(cluster)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=index, protocol="grpc")
    workers = [Task(WORKER, worker) for worker in range(len(cluster[WORKER]))]
    check_all(workers, cluster, TaskAdmission(leading, CompatibilityFingerprint.of(config, dataset)))
    # Variables are made on processors: soft placement is of graphs alone.
    holders = [device_of(worker) for worker in range(len(workers))]
    session = start.build(holders, OWN_DEVICE)
    Chief(config, session, LocalDispatcher()).run(drain)
    session.end(stopped=drain.is_set(), goes_on=leading.alone and not drain.for_good)
    if leading.alone and (session.progress.completed or drain.for_good):
        tell_end(leading, workers, completed=session.progress.completed)


def build(
    config: RunConfig, dataset: PackedDataset, holders: Sequence[str], own_device: str, *, log: Path | None = None
) -> tuple[ParameterStore, Compute]:
    """Return the store, with a slice for each worker's part on each of `holders`, and the step through all of them.

    Args:
      log: the file to write the device of each operation to, if that is asked for.
    """
    mode = cast(SplitNetwork, config.mode_kind)
    network, start = make_network(config, dataset, own_device)
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


def _lines(parts: Sequence[Part], there: Sequence[str]) -> list[str]:
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
        self._examples = config.examples_per_step
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
        for holder, (worker, _), part in zip(self._holders, self._identities, self._store.slices, strict=True):
            with tf.device(holder):
                asked.append(now_after(step_id))
                pulled.append(part.pull(tf.constant(worker, tf.int64), [asked[-1]]))
        weights, statistics, versions = zip(*pulled)
        results = self._step.by_parts(step_id, weights, statistics)
        pushed = []
        for number, (part, result) in enumerate(zip(self._store.slices, results, strict=True)):
            with tf.device(self._holders[number]):
                row = self._row(number, result, scheduled, asked[number], now_after(weights[number]))
                pushed.append(part.push(step_id, versions[number][0], result.gradient, result.fresh, row))
        return tf.stack(pushed)

    def _row(
        self, number: int, result: StepResult, scheduled: tf.Tensor, asked: tf.Tensor, pulled: tf.Tensor
    ) -> tf.Tensor:
        worker, pid = self._identities[number]
        computed = now_after(result.gradient)
        return worker_row(
            {
                "worker": worker,
                "pid": pid,
                "examples": self._examples,
                "metric": result.metric,
                "loss": result.loss,
                "learning_rate": result.learning_rate,
                "scheduled_time": scheduled,
                "asked_time": asked,
                "admitted_time": asked,
                "pulled_time": pulled,
                "computed_time": computed,
                "pushed_time": computed,
            }
        )


def _identity(device: str) -> tuple[int, int]:
    """Return index and pid, as the process on a device reads them from its own folder."""
    with tf.device(device):
        worker, pid = WorkerIdentity.read().both().numpy().tolist()
    return worker, pid


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


@dataclass(frozen=True)
class Part:
    """A worker's share of a network."""

    positions: np.ndarray  # int64 [k], of its weights in the vector of the whole network
    statistics: int  # how many it has, in the order of the network's
    device: str  # that it is asked to compute on
    layers: str


class SplitStep(Protocol):
    """A training step whose weights are in parts."""

    parts: Sequence[Part]

    def by_parts(
        self, step: tf.Tensor, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor]
    ) -> list[StepResult]:
        """Compute a step; return each part's own gradient and statistics, with loss and metric of the whole.

        Args:
          step: int64 []. weights, statistics: of each part.
        """


def first_blocks(blocks: Sequence[Block], places: Sequence[Place], workers: int) -> list[int]:
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


def _asked_for(blocks: Sequence[Block], places: Sequence[Place]) -> dict[int, int]:
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


# One training step whose layers are on several devices: forward through all of them, and backward again.


@dataclass(frozen=True)
class ForwardPass:
    """A stage's forward pass over a part of a batch, and what its backward pass needs."""

    outputs: Any
    fresh: tf.Tensor
    ends: list[tf.Tensor]  # what is differentiated: losses, then the outputs, or the loss of the batch in their place
    starts: list[tf.Tensor]  # by what: the weights, then the inputs, if a stage before made them
    tape: tf.GradientTape


@dataclass(frozen=True)
class Stage:
    """Some consecutive layers of a network, and the device that computes them."""

    network: FlatNetwork
    device: str
    layers: str = ""  # their names, for the log

    def forward(
        self,
        weights: tf.Tensor,
        statistics: tf.Tensor,
        inputs: Mapping[str, tf.Tensor] | tf.Tensor,
        random_state: tf.Tensor,
        loss: Callable[[Any], tf.Tensor] | None,
    ) -> ForwardPass:
        """Run the forward pass.

        Args:
          inputs: the examples by name, or what the stage before returned.
          loss: of the last stage: the loss of its outputs.
        """
        with tf.device(self.device), tf.GradientTape() as tape:
            starts = [weights]
            if isinstance(inputs, tf.Tensor):
                arrived = tf.identity(inputs)  # else it is sent once for the forward and once for the backward pass
                starts, inputs = [weights, arrived], {"activations": arrived}
            tape.watch(starts)
            passed = self.network.forward(weights, statistics, inputs, random_state)
            end = passed.outputs if loss is None else loss(passed.outputs)
        return ForwardPass(passed.outputs, passed.fresh, [*passed.losses, end], starts, tape)

    def backward(self, passed: ForwardPass, upstream: tf.Tensor) -> list[tf.Tensor]:
        """Return the gradients by weights and inputs. `upstream`: by the last of `passed.ends`."""
        with tf.device(self.device):
            ones = [tf.ones([]) for _ in passed.ends[:-1]]
            gradients: list[tf.Tensor] = passed.tape.gradient(
                passed.ends, passed.starts, [*ones, upstream], unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
        return gradients


class StagedStep(TrainStep):
    """Computes a step through all stages; a batch may go in micro-batches, as in GPipe.

    The gradient is the mean over the micro-batches (Huang et al. 2019, arXiv:1811.06965, section 2.2). Normalisation
    takes the statistics of each micro-batch, and the moving ones take in their mean (section 2.3 there).
    """

    def __init__(
        self,
        config: RunConfig,
        network: FlatNetwork,
        spec: ExampleSpec,
        *,
        train_examples: int,
        stages: Sequence[Stage],
        micro_batches: int,
    ):
        super().__init__(config, network, spec, train_examples=train_examples)
        self.stages = stages
        ends = np.cumsum([stage.network.weights.length for stage in stages])
        self.parts = [
            Part(
                np.arange(end - stage.network.weights.length, end),
                stage.network.statistics.length,
                stage.device,
                stage.layers,
            )
            for stage, end in zip(stages, ends, strict=True)
        ]
        self._micro_batches = micro_batches
        self._clips = [clipping_of(config.optimizer, stage.network.weights) for stage in stages]

    def by_parts(
        self, step: tf.Tensor, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor]
    ) -> list[StepResult]:
        """Compute a step, see `SplitStep`."""
        first, last = self.stages[0], self.stages[-1]
        with tf.device(first.device):
            parts = self._cut(self.batch(step))
            rate = self.learning_rate(step)
        parameters = list(zip(weights, statistics))
        passes = [self._forward(step, part, number, parameters) for number, part in enumerate(parts)]
        gradients = [self._backward(passed) for passed in passes]
        with tf.device(last.device):
            loss = tf.add_n([end for passed in passes for stage in passed for end in _losses(stage, passed)])
            metrics = [
                tf.reduce_sum(self._judge.metric(part.targets, passed[-1].outputs))
                for part, passed in zip(parts, passes, strict=True)
            ]
            loss, metric = loss / len(parts), tf.add_n(metrics)
        results = []
        for number, stage in enumerate(self.stages):
            with tf.device(stage.device):
                gradient = _mean([of[number] for of in gradients])
                fresh = _mean([passed[number].fresh for passed in passes])
                results.append(StepResult(self._clips[number](gradient), fresh, loss, metric, rate))
        return results

    def _cut(self, batch: TrainBatch) -> list[TrainBatch]:
        """Return the micro-batches of a batch, of equal size."""
        count = self._micro_batches
        inputs = {name: tf.split(rows, count) for name, rows in batch.inputs.items()}
        targets = tf.split(batch.targets, count)
        weights = [None] * count if batch.weights is None else tf.split(batch.weights, count)
        return [
            TrainBatch({name: rows[part] for name, rows in inputs.items()}, targets[part], weights[part])
            for part in range(count)
        ]

    def _forward(
        self, step: tf.Tensor, part: TrainBatch, number: int, parameters: Sequence[tuple[tf.Tensor, tf.Tensor]]
    ) -> list[ForwardPass]:
        passed: list[ForwardPass] = []
        inputs: Any = part.inputs
        for stage, (weights, statistics) in zip(self.stages, parameters, strict=True):
            loss = (
                (lambda outputs: self._judge.loss(part.targets, outputs, part.weights)) if self._ends(stage) else None
            )
            with tf.device(stage.device):
                random_state = self._random_state(step, number)
            passed.append(stage.forward(weights, statistics, inputs, random_state, loss))
            inputs = passed[-1].outputs
        return passed

    def _ends(self, stage: Stage) -> bool:
        return stage is self.stages[-1]

    def _random_state(self, step: tf.Tensor, number: int) -> tf.Tensor:
        """Return the state of a micro-batch: with a single one that of a `TrainStep`, else different ones."""
        draws = tf.cast(step, tf.int32) * self._micro_batches + number
        return tf.stack([self._config.training.seed, draws])

    def _backward(self, passed: Sequence[ForwardPass]) -> list[tf.Tensor]:
        """Return the gradient by the weights of each stage."""
        upstream = tf.ones([])
        gradients: list[tf.Tensor] = []
        for stage, own in reversed(list(zip(self.stages, passed, strict=True))):
            gradient, *before = stage.backward(own, upstream)
            gradients.insert(0, gradient)
            upstream = before[0] if before else None
        return gradients


def _losses(stage: ForwardPass, passed: Sequence[ForwardPass]) -> list[tf.Tensor]:
    """Return the losses of a stage: those of its layers, and of the last one that of the batch."""
    return stage.ends if stage is passed[-1] else stage.ends[:-1]


def _mean(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    return vectors[0] if len(vectors) == 1 else tf.add_n(vectors) / len(vectors)


def cut_by_layers(
    config: RunConfig, dataset: PackedDataset, network: FlatNetwork, device: str, workers: int
) -> StagedStep:
    """Cut a network for `workers`, see `SplitNetwork.cut`."""
    settings = LAYERS.settings(config)
    tf.config.set_soft_device_placement(settings.soft_placement)
    try:
        blocks = blocks_of(network.model)
    except ValueError as error:
        raise ValueError(f"model.name: got '{config.model.name}': {error}") from error
    firsts = first_blocks(blocks, settings.places, workers)
    with tf.device(device):
        networks = stages_of(network.model, blocks, firsts)
    ends = np.cumsum([one.statistics.length for one in networks])[:-1]
    for one, keep in zip(networks, np.split(network.keep, ends), strict=True):
        one.keep = keep  # of the whole network's trace: a layer may be called several times a step
    devices = devices_of(settings, workers, names_of_all_devices())
    stages = [
        Stage(one, its, _listed(blocks[begin:end]))
        for one, its, begin, end in zip(networks, devices, firsts, [*firsts[1:], len(blocks)], strict=True)
    ]
    return StagedStep(
        config, network, dataset.spec,
        train_examples=dataset.train_examples, stages=stages, micro_batches=settings.micro_batches,
    )  # fmt: skip


def _listed(blocks: Sequence[Block]) -> str:
    return ", ".join(layer for block in blocks for layer in block.layers)


# One training step whose layers are spread over several devices by their units.


class WideStep(TrainStep):
    """Computes a step with a vector of weights for each device; all statistics are the first one's."""

    def __init__(
        self,
        config: RunConfig,
        whole: FlatNetwork,
        spec: ExampleSpec,
        *,
        train_examples: int,
        network: WideNetwork,
        devices: Sequence[str],
    ):
        """Cut a step. `network`: made of the `whole` one, for these `devices`."""
        super().__init__(config, whole, spec, train_examples=train_examples)
        self._network = network
        clips = [clipping_of(config.optimizer, layout) for layout in network.layouts]
        self._clip = lambda gradients: [_clipped(*of) for of in zip(gradients, clips, devices, strict=True)]
        self.parts = [
            Part(positions, 0 if number else network.statistics.length, device, network.layers_on(number))
            for number, (positions, device) in enumerate(zip(network.positions, devices, strict=True))
        ]

    def by_parts(
        self, step: tf.Tensor, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor]
    ) -> list[StepResult]:
        """Compute a step, see `SplitStep`."""
        with tf.device(self.parts[0].device):
            whole = self(step, weights, statistics[0])
        fresh = [whole.fresh, *statistics[1:]]  # those are empty
        return [replace(whole, gradient=own, fresh=its) for own, its in zip(whole.gradient, fresh, strict=True)]


def _clipped(gradient: tf.Tensor, clip: Clip, device: str) -> tf.Tensor:
    with tf.device(device):
        return clip(gradient)


def cut_by_width(
    config: RunConfig, dataset: PackedDataset, network: FlatNetwork, device: str, workers: int
) -> WideStep:
    """Cut a network for `workers`, see `SplitNetwork.cut`."""
    devices = [device_of(worker) for worker in range(workers)]
    try:
        with tf.device(device):
            wide = WideNetwork(network, devices, WIDTH.settings(config).least_units)
    except ValueError as error:
        raise ValueError(f"model.name: got '{config.model.name}': {error}") from error
    return WideStep(config, network, dataset.spec, train_examples=dataset.train_examples, network=wide, devices=devices)
