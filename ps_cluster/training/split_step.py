"""Compute one training step of a network in parts, and cut a network into parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.data.batches import checksum_of
from ps_cluster.data.packed import PackedDataset
from ps_cluster.models.compiled import MicroBatchFactors
from ps_cluster.models.cuts import PartedNetwork
from ps_cluster.models.failures import COMPUTATION
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.models.stages import StagedNetwork, blocks_of
from ps_cluster.models.width import WideNetwork
from ps_cluster.training.devices import processor_beside
from ps_cluster.training.modes.layers import LayersSettings
from ps_cluster.training.modes.width import WidthSettings
from ps_cluster.training.placement import devices_of, first_blocks, names_of_all_devices
from ps_cluster.training.step import StepResult, TrainBatch, TrainStep, clipping_of, example_count


class SplitStep(TrainStep):
    """Computes a step of a network that is cut into parts. Each part has its own vector of weights.

    As in GPipe, a batch may be cut into micro-batches.
    The gradient is the mean over the micro-batches (Huang et al. 2019, arXiv:1811.06965, section 2.2). Normalisation
    uses the statistics of each micro-batch, and the moving statistics are updated with their mean (section 2.3 there).
    """

    def __init__(
        self,
        config: RunConfig,
        whole: FlatNetwork,
        spec: ExampleSpec,
        *,
        train_examples: int,
        network: PartedNetwork,
        log: Path | None,
        micro_batches: int = 1,
    ):
        """Create the step.

        Args:
          network: the parts, which are cut from the network `whole`.
          log: the file to which the device of each operation is written; None if it is not written.
        """
        super().__init__(config, whole, spec, train_examples=train_examples)
        self.parts = network.parts
        self.log = log
        self._parted = network
        self._micro_batches = micro_batches
        self._clips = [clipping_of(config.optimizer, part.layout) for part in self.parts]

    def by_parts(
        self, step: tf.Tensor, weights: Sequence[tf.Tensor], statistics: Sequence[tf.Tensor]
    ) -> list[StepResult]:
        """Compute a step; return the gradient and statistics of each part, with loss and metric of the whole network.

        Args:
          step: the step id, int64 [].
          weights: the weights of each part, [n] each, where n is the number of its weights.
          statistics: the moving statistics of each part, float32 [m] each, where m is their number.
        """
        with tf.device(processor_beside(self.parts[0].device)):
            batch = self.batch(step)
            batches, checksum = self._cut(batch), checksum_of(batch.ids)
            rate = self.learning_rate(step)
        scales = _loss_scales(batches)
        losses, metrics, examples, gradients, fresh = zip(
            *(
                self._of_micro_batch(step, number, batch, scale, weights, statistics)
                for number, (batch, scale) in enumerate(zip(batches, scales, strict=True))
            )
        )
        with tf.device(self._parted.output_device):
            loss, metric, count = _mean(losses), tf.add_n(metrics), tf.add_n(examples)
        results = []
        of_parts = zip(self.parts, self._clips, zip(*gradients), zip(*fresh), strict=True)
        for part, clip, part_gradients, part_fresh in of_parts:
            with tf.device(part.device):
                gradient = clip(_mean(part_gradients))
                results.append(StepResult(gradient, _mean(part_fresh), loss, metric, rate, count, checksum))
        return results

    def _cut(self, batch: TrainBatch) -> list[TrainBatch]:
        """Cut a batch into micro-batches of equal size."""
        count = self._micro_batches
        inputs = {name: tf.split(rows, count) for name, rows in batch.inputs.items()}
        targets = [tf.split(rows, count) for rows in tf.nest.flatten(batch.targets)]
        weights = [None] * count if batch.weights is None else tf.split(batch.weights, count)
        ids = tf.split(batch.ids, count)
        return [
            TrainBatch(
                {name: rows[part] for name, rows in inputs.items()},
                tf.nest.pack_sequence_as(batch.targets, [rows[part] for rows in targets]),
                weights[part],
                ids[part],
            )
            for part in range(count)
        ]

    def _of_micro_batch(
        self,
        step: tf.Tensor,
        number: int,
        batch: TrainBatch,
        scale: MicroBatchFactors | None,
        weights: Sequence[tf.Tensor],
        statistics: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """Return loss, metric and number of examples of a micro-batch, and two lists with one vector for each part.

        The vectors are the part's gradient, and what the micro-batch adds to the part's moving statistics.
        """
        # A single micro-batch has the random state of a `TrainStep`. Several have different random states.
        draws = tf.cast(step, tf.int32) * self._micro_batches + number
        with tf.device(self._parted.output_device), tf.name_scope(COMPUTATION):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                random_state = tf.stack([self._config.training.seed, draws])
                passed = self._parted.forward(weights, statistics, batch.inputs, random_state)
                loss = sum(passed.losses, self._head.loss(batch.targets, passed.outputs, batch.weights, scale))
            gradients = tape.gradient(loss, weights)
            metric = tf.reduce_sum(self._head.metric(batch.targets, passed.outputs))
            return loss, metric, example_count(passed.outputs), gradients, passed.fresh


def _loss_scales(batches: Sequence[TrainBatch]) -> list[MicroBatchFactors | None]:
    """Return the loss scale of each micro-batch, so that the mean of the scaled losses is the loss of the whole batch.

    A batch that is not cut into micro-batches needs no scale: the result is [None].
    """
    count = len(batches)
    if count == 1:
        return [None]
    sums = [tf.constant(0.0) if batch.weights is None else tf.reduce_sum(batch.weights) for batch in batches]
    whole = tf.add_n(sums)
    return [MicroBatchFactors(tf.constant(float(count)), count * tf.math.divide_no_nan(one, whole)) for one in sums]


def _mean(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    return vectors[0] if len(vectors) == 1 else tf.add_n(vectors) / len(vectors)


def cut_by_layers(
    config: RunConfig,
    settings: LayersSettings,
    dataset: PackedDataset,
    network: FlatNetwork,
    device: str,
    log: Path | None,
) -> SplitStep:
    """Cut a network between its layers. See `SplitNetwork.cut`."""
    try:
        blocks = blocks_of(network.model)
    except ValueError as error:
        raise ValueError(f"model.name: got '{config.model.name}': {error}") from error
    firsts = first_blocks(blocks, settings.places, config.cluster.workers)
    devices = devices_of(config, settings.devices, names_of_all_devices())
    with tf.device(device):
        staged = StagedNetwork(network, blocks, firsts, devices)
    return SplitStep(
        config, network, dataset.spec,
        train_examples=dataset.train_examples, network=staged, micro_batches=settings.micro_batches, log=log,
    )  # fmt: skip


def cut_by_width(
    config: RunConfig,
    settings: WidthSettings,
    dataset: PackedDataset,
    network: FlatNetwork,
    device: str,
    log: Path | None,
) -> SplitStep:
    """Cut the wide layers of a network by their units. See `SplitNetwork.cut`."""
    devices = devices_of(config, {}, names_of_all_devices())
    try:
        with tf.device(device):
            wide = WideNetwork(network, devices, settings.least_units)
    except ValueError as error:
        raise ValueError(f"model.name: got '{config.model.name}': {error}") from error
    return SplitStep(config, network, dataset.spec, train_examples=dataset.train_examples, network=wide, log=log)
