"""Divide a network, a chain of layers, into stages on several devices.

    device 0: layers 1 to 3 ──activations──► device 1: layers 4 to 6 ──► outputs

Each stage takes the single output of the stage before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.models.cuts import NetworkPart, PartedForward, compute_on, functional_model_of
from ps_cluster.models.flat import FlatNetwork, Forward, statistics_of
from ps_cluster.models.pure import seeds_of
from ps_cluster.private_names import LayerCall, calls_of, layers_of


@dataclass(frozen=True)
class Block:
    """A series of layers that have to stay on one device: a network can be cut before and after it, but not inside."""

    layers: tuple[str, ...]  # the names of the layers, in order
    weights: int  # how many trainable numbers the layers have
    sends: int  # how many numbers the block returns for each example
    output: keras.KerasTensor | None  # the tensor that crosses to the next block; None for the last one


def blocks_of(model: keras.Model) -> list[Block]:
    """Return the blocks of a network, in order. Raises ValueError for a user's model class, or if a layer makes a mask.

    A network can be cut where only one tensor, of floats, crosses the cut, and no layer with variables is used on both
    sides.
    """
    graph = functional_model_of(model)
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
            raise ValueError(f"layer '{layer.name}' makes a mask, which can't be sent from one worker to the next")
    nodes = sorted(calls_of(graph) or [], key=lambda node: not node.is_input)  # in the order of computation
    ends = [end for end in range(1, len(nodes)) if _can_be_cut(graph, nodes, end)]
    blocks = []
    for begin, end in pairwise([0, *ends, len(nodes)]):
        layers = dict.fromkeys(node.operation for node in nodes[begin:end] if not node.is_input)  # each layer once
        variables = [v for layer in layers for v in getattr(layer, "trainable_variables", ())]
        weights = sum(prod(v.shape) for v in variables)
        output = None if end == len(nodes) else _crossing(graph, nodes, end)[0]
        sent = keras.tree.flatten(graph.output if output is None else output)
        sends = sum(prod(size or 1 for size in tensor.shape[1:]) for tensor in sent)
        blocks.append(Block(tuple(layer.name for layer in layers), weights, sends, output))
    return blocks


def balanced(blocks: Sequence[Block], parts: int) -> list[int]:
    """Cut a network into `parts` parts as evenly as possible. Return the index of the first block of each part.

    For each part, the square of its number of weights is computed. The sum of these squares is smallest for the chosen
    cut. Of several cuts with the same sum, the cut that sends the fewest numbers is chosen. Each part has weights, so
    `parts` must not be larger than the number of blocks with weights.
    """
    until = [0, *accumulate(block.weights for block in blocks)]
    # The number of blocks before a cut → the cost of the best parts of these blocks, and the first block of each part.
    best: dict[int, tuple[tuple[int, int], list[int]]] = {0: ((0, 0), [])}
    for _ in range(parts):
        longer: dict[int, tuple[tuple[int, int], list[int]]] = {}
        for begin, ((squares, sent), firsts) in best.items():
            for end in range(begin + 1, len(until)):
                size = until[end] - until[begin]
                cost = squares + size**2, sent + blocks[end - 1].sends
                if size and (end not in longer or cost < longer[end][0]):
                    longer[end] = cost, [*firsts, begin]
        best = longer
    return best[len(blocks)][1]


class StagedNetwork:
    """A network that is divided into stages, as a function of a vector of weights and a vector of statistics per stage.

    Each stage is itself a network. It shares its layers, and therefore their variables, with the whole network.
    """

    def __init__(self, whole: FlatNetwork, blocks: Sequence[Block], firsts: Sequence[int], devices: Sequence[str]):
        """Cut the network `whole` into one stage for each device.

        `blocks`: the blocks of the network, as `blocks_of` returns them. `firsts`: the index of the first block of each
        stage.

        Raises:
          ValueError: the variables of the stages, end to end, are in another order than those of the network.
        """
        graph = functional_model_of(whole.model)
        tensors = [graph.input, *(blocks[first - 1].output for first in firsts[1:]), graph.output]
        self.output_device = devices[-1]  # the device whose stage returns the outputs
        self.stages: list[FlatNetwork] = []
        self.parts: list[NetworkPart] = []
        weights = statistics = seeds = 0
        ends = pairwise(tensors), pairwise([*firsts, len(blocks)])
        for device, (before, after), (begin, end) in zip(devices, *ends, strict=True):
            model = keras.Model(before, after, name=f"{whole.model.name}_stage_{len(self.stages) + 1}")
            stage = FlatNetwork(model, seeds_before=seeds, to_float32=end == len(blocks))
            # Only the whole network counts how often a step calls each layer, so `keep` comes from there.
            stage.keep = whole.keep[statistics : statistics + stage.statistics.length]
            layers = ", ".join(layer for block in blocks[begin:end] for layer in block.layers)
            positions = np.arange(weights, weights + stage.weights.length)
            self.stages.append(stage)
            self.parts.append(NetworkPart(device, positions, stage.weights, stage.statistics.length, layers))
            weights, statistics = weights + stage.weights.length, statistics + stage.statistics.length
            seeds += len(seeds_of(model))
        _check_variables(whole.model, [stage.model for stage in self.stages])

    def forward(
        self,
        weights: Sequence[tf.Tensor],
        statistics: Sequence[tf.Tensor],
        inputs: Mapping[str, tf.Tensor],
        random_state: tf.Tensor,
    ) -> PartedForward:
        """Run the forward pass, as described in `PartedNetwork.forward`. The parts are the stages."""
        passes: list[Forward] = []
        for stage, part, vector, own in zip(self.stages, self.parts, weights, statistics, strict=True):

            def compute(vector: tf.Tensor, *arrived: tf.Tensor) -> Forward:
                given = {"activations": arrived[0]} if arrived else inputs
                passed = stage.forward(vector, own, given, random_state)  # noqa: B023 (it is called in this iteration)
                return passed._replace(fresh=tf.stop_gradient(passed.fresh))  # so no zeros flow back through `fresh`

            crossing = [passes[-1].outputs] if passes else []  # networks are cut only where one tensor crosses
            passes.append(compute_on(part.device, compute, vector, *crossing))
        losses = [loss for passed in passes for loss in passed.losses]
        return PartedForward(passes[-1].outputs, [passed.fresh for passed in passes], losses)


def _check_variables(model: keras.Model, parts: Sequence[keras.Model]) -> None:
    """Raise ValueError if the flat vectors of the parts, end to end, would not be the vectors of the model."""
    for of in (lambda one: one.trainable_variables, statistics_of, seeds_of):
        own, cut = [v.path for v in of(model)], [v.path for part in parts for v in of(part)]
        if own != cut:
            first = next((path for path, other in zip(own, cut) if path != other), model.name)
            raise ValueError(
                f"mode 'layers' can't divide the network: from variable '{first}' on, its parts would have the variables in "
                "another order than the whole network"
            )


def _can_be_cut(graph: keras.Model, nodes: Sequence[LayerCall], end: int) -> bool:
    """Return whether a network can be cut between its nodes (calls of layers) `end` - 1 and `end`."""
    before, after = (
        {id(node.operation) for node in part if getattr(node.operation, "variables", ())}
        for part in (nodes[:end], nodes[end:])
    )
    crossing = _crossing(graph, nodes, end)
    if len(crossing) != 1 or nodes[end - 1].is_input or before & after:
        return False
    return "float" in crossing[0].dtype


def _crossing(graph: keras.Model, nodes: Sequence[LayerCall], end: int) -> list[keras.KerasTensor]:
    """Return the tensors of the nodes before `end` that later nodes need, or that the network returns."""
    later = [tensor for node in nodes[end:] for tensor in node.input_tensors]
    needed = set(map(id, [*keras.tree.flatten(graph.output), *later]))
    return [tensor for node in nodes[:end] for tensor in node.output_tensors if id(tensor) in needed]
