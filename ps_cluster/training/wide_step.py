"""One training step whose layers are spread over several devices by their units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.models.width import WideNetwork
from ps_cluster.training.clipping import Clip, clipping_of
from ps_cluster.training.modes.width import WIDTH
from ps_cluster.training.placement import Part, device_of
from ps_cluster.training.step import StepResult, TrainStep


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
