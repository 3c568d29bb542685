"""One training step whose layers are on several devices: forward through all of them, and backward again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.data.packed import PackedDataset
from ps_cluster.models.cuts import Block, WideNetwork, blocks_of, stages_of
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.training.modes.layers import LAYERS
from ps_cluster.training.modes.width import WIDTH
from ps_cluster.training.placement import Part, device_of, devices_of, first_blocks, names_of_all_devices
from ps_cluster.training.step import Clip, StepResult, TrainBatch, TrainStep, clipping_of


@dataclass(frozen=True)
class Passed:
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
    ) -> Passed:
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
        return Passed(passed.outputs, passed.fresh, [*passed.losses, end], starts, tape)

    def backward(self, passed: Passed, upstream: tf.Tensor) -> list[tf.Tensor]:
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
    ) -> list[Passed]:
        passed: list[Passed] = []
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

    def _backward(self, passed: Sequence[Passed]) -> list[tf.Tensor]:
        """Return the gradient by the weights of each stage."""
        upstream = tf.ones([])
        gradients: list[tf.Tensor] = []
        for stage, own in reversed(list(zip(self.stages, passed, strict=True))):
            gradient, *before = stage.backward(own, upstream)
            gradients.insert(0, gradient)
            upstream = before[0] if before else None
        return gradients


def _losses(stage: Passed, passed: Sequence[Passed]) -> list[tf.Tensor]:
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
