"""Divide a network over several devices: into stages (parts of a chain of layers), or each wide layer by its units.

    StagedNetwork   device 0: layers 1 to 3 ──activations──► device 1: layers 4 to 6 ──► outputs
    WideNetwork     device 0: units 0 to 31 of each wide layer, joins the outputs, and the layers that stay whole
                    device 1: units 32 to 63 of each wide layer

Both are pure functions of a vector of weights for each device. What a device computes forward it computes backward, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.models.flat import FlatLayout, FlatNetwork, Forward, seeds_of, statistics_of
from ps_cluster.private_names import calls_of, functional_of, layers_of


@dataclass(frozen=True)
class NetworkPart:
    """A device's share of a network.

    Attributes:
      device: that is asked to compute it.
      positions: int64 [k], of its weights in the vector of the whole network.
      layout: of its weights, by variables.
      statistics: how many it has, in the order of the network's.
      layers: their names, for the log.
    """

    device: str
    positions: np.ndarray
    layout: FlatLayout
    statistics: int
    layers: str


def on_device(device: str, function: Callable[..., Any], *given: tf.Tensor) -> Any:
    """Return `function(*given)`, tensors in any structure, computed on a device, and its backward pass there too.

    Without that, a gradient is computed on the device of whoever asks for it.
    """

    @tf.custom_gradient
    def forward(*arrived: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        with tf.GradientTape() as tape:
            tape.watch(arrived)
            outputs = function(*arrived)

        def backward(*upstream: tf.Tensor) -> Any:
            with tf.device(device):
                return tape.gradient(outputs, arrived, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO)

        return outputs, backward

    with tf.device(device):
        return forward(*given)


# Stages: parts of a chain, each of which takes the single output of the part before it.


@dataclass(frozen=True)
class Block:
    """Layers between two neighbouring places where a network can be cut. They stay together.

    Attributes:
      layers: their names, in order.
      weights: how many trainable numbers they have.
      sends: how many numbers they return for each example.
      output: the Keras tensor, or the structure of such, that they return.
    """

    layers: tuple[str, ...]
    weights: int
    sends: int
    output: Any


def blocks_of(model: keras.Model) -> list[Block]:
    """Return the blocks of a network, in order.

    A network can be cut where one tensor of floats crosses, and where no layer with variables is used on both sides.

    Raises:
      ValueError: its layers can't be told apart, or would not do the same on both sides of a cut.
    """
    graph = graph_of(model)
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
            raise ValueError(f"layer '{layer.name}' makes a mask, which would not cross from worker to worker")
    nodes = sorted(calls_of(graph) or [], key=lambda node: not node.is_input)  # each after those that it needs
    ends = [end for end in range(1, len(nodes)) if _can_be_cut(graph, nodes, end)]
    blocks = []
    for begin, end in pairwise([0, *ends, len(nodes)]):
        layers = [node.operation for node in nodes[begin:end] if not node.is_input]
        output = graph.output if end == len(nodes) else _crossing(graph, nodes, end)[0]
        weights = sum(
            prod(v.shape) for layer in dict.fromkeys(layers) for v in getattr(layer, "trainable_variables", ())
        )
        sends = sum(prod(size or 1 for size in tensor.shape[1:]) for tensor in keras.tree.flatten(output))
        blocks.append(Block(tuple(dict.fromkeys(layer.name for layer in layers)), weights, sends, output))
    return blocks


def balanced(blocks: Sequence[Block], parts: int) -> list[int]:
    """Return the first block of each part: of all ways to cut, the one with the least sum of squared weights.

    Of several such ways it takes the one that sends least. Each part has weights.

    Args:
      parts: at most as many as there are blocks with weights.
    """
    until = [0, *accumulate(block.weights for block in blocks)]
    # The end of the parts so far → the cost of the best way there, and its first blocks.
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
    """A network in stages, as a function of a vector of weights, and one of statistics, for each of them.

    Attributes:
      parts: of each stage.
      last: the device whose stage returns the outputs.
      stages: they share the layers of the network, and so its variables.
    """

    def __init__(self, whole: FlatNetwork, blocks: Sequence[Block], firsts: Sequence[int], devices: Sequence[str]):
        """Cut a network.

        Args:
          firsts: the first of its `blocks` of each stage. devices: of each stage.
        Raises:
          ValueError: the variables of the stages, in order, are not those of the network.
        """
        graph = graph_of(whole.model)
        tensors = [graph.input, *(blocks[first - 1].output for first in firsts[1:]), graph.output]
        self.last = devices[-1]
        self.stages: list[FlatNetwork] = []
        self.parts: list[NetworkPart] = []
        weights = statistics = seeds = 0
        ends = pairwise(tensors), pairwise([*firsts, len(blocks)])
        for device, (before, after), (begin, end) in zip(devices, *ends, strict=True):
            model = keras.Model(before, after, name=f"{whole.model.name}_stage_{len(self.stages) + 1}")
            stage = FlatNetwork(model, seeds_before=seeds, to_float32=end == len(blocks))
            # Of the whole network's trace: a layer may be called several times a step.
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
    ) -> Forward:
        """Run the forward pass; see `FlatNetwork.forward`. Of each stage are weights, statistics, and the fresh ones."""
        passes: list[Forward] = []
        for stage, part, vector, own in zip(self.stages, self.parts, weights, statistics, strict=True):

            def compute(vector: tf.Tensor, *arrived: tf.Tensor) -> Forward:
                given = {"activations": arrived[0]} if arrived else inputs
                passed = stage.forward(vector, own, given, random_state)
                return passed._replace(fresh=tf.stop_gradient(passed.fresh))  # else zeros would go back through it

            crossing = [passes[-1].outputs] if passes else []  # a single tensor, as nothing is cut elsewhere
            passes.append(on_device(part.device, compute, vector, *crossing))
        losses = [loss for passed in passes for loss in passed.losses]
        return Forward(passes[-1].outputs, [passed.fresh for passed in passes], losses)


def _check_variables(model: keras.Model, parts: Sequence[keras.Model]) -> None:
    """Raise ValueError where the flat vectors of the parts, end to end, would not be those of the model."""
    for of in (lambda one: one.trainable_variables, statistics_of, seeds_of):
        own, cut = [v.path for v in of(model)], [v.path for part in parts for v in of(part)]
        if own != cut:
            first = next((path for path, other in zip(own, cut) if path != other), model.name)
            raise ValueError(f"mode layers can't cut it: in its order of variables, '{first}' is of another part")


def graph_of(model: keras.Model) -> Any:
    """Return the Keras graph of a network: itself, or what a Sequential has made of its layers.

    Raises:
      ValueError: it is a class of a user's own.
    """
    by_layers_alone = type(model).__module__.startswith("keras.")
    graph: Any = functional_of(model) if isinstance(model, keras.Sequential) else model
    if not by_layers_alone or calls_of(graph) is None:
        raise ValueError(
            "only a keras.Sequential, or a keras.Model(inputs, outputs), can be cut; this one is a class of its own "
            f"({type(model).__name__}), and only its `call` knows its layers"
        )
    return graph


def _can_be_cut(graph: Any, nodes: Sequence[Any], end: int) -> bool:
    before, after = (
        {id(node.operation) for node in part if getattr(node.operation, "variables", ())}
        for part in (nodes[:end], nodes[end:])
    )
    crossing = _crossing(graph, nodes, end)
    if len(crossing) != 1 or nodes[end - 1].is_input or before & after:
        return False
    return "float" in crossing[0].dtype


def _crossing(graph: Any, nodes: Sequence[Any], end: int) -> list[Any]:
    """Return the tensors that the nodes before `end` make, and that later ones need or the network returns."""
    later = [tensor for node in nodes[end:] for tensor in node.input_tensors]
    needed = set(map(id, [*keras.tree.flatten(graph.output), *later]))
    return [tensor for node in nodes[:end] for tensor in node.output_tensors if id(tensor) in needed]


# Cut the layers of a network by their units or filters: a part of each wide layer on each of several devices.
#
# The parts compute their own outputs, forward and backward, each from the whole input of the layer. The first device
# joins the outputs, and computes the layers that stay whole.

# Layers whose kernel and bias have the units or filters as last axis, and the argument that is their number.
_CUT = {
    keras.layers.Dense: "units",
    keras.layers.Conv1D: "filters",
    keras.layers.Conv2D: "filters",
    keras.layers.Conv3D: "filters",
}
# Functions of each output by itself. A softmax is none: it needs all of them.
_OF_ONE_OUTPUT = frozenset(
    [
        "elu",
        "exponential",
        "gelu",
        "hard_sigmoid",
        "hard_silu",
        "leaky_relu",
        "linear",
        "mish",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
        "softplus",
        "softsign",
        "tanh",
    ]
)
_SUMS_OVER_WEIGHTS = (type(None), keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


class InParts(keras.layers.Layer):
    """A layer whose units or filters are on several devices.

    Attributes:
      ends: part p has the units ends[p] .. ends[p + 1] - 1.
      parts: for each device a layer of the class that was cut, with the weights of its units.
    """

    def __init__(self, whole: keras.layers.Layer, devices: Sequence[str]):
        # Without autocast it sees weights in their own dtype; each part casts them, and its input, on its device.
        super().__init__(name=whole.name, dtype=whole.dtype_policy, autocast=False)
        self.supports_masking = whole.supports_masking
        self.compute_output_shape = whole.compute_output_shape
        self._devices = devices
        self._penalties = [variable.regularizer for variable in whole.trainable_variables]
        width = _CUT[type(whole)]
        units = getattr(whole, width)
        self.ends = tuple(units * part // len(devices) for part in range(len(devices) + 1))
        settings = whole.get_config() | {"kernel_initializer": "zeros", "bias_initializer": "zeros"}
        settings |= {"kernel_regularizer": None, "bias_regularizer": None, "activation": whole.activation}
        self.parts = [
            type(whole).from_config(settings | {width: end - begin, "name": f"part_{number}"})
            for number, (begin, end) in enumerate(pairwise(self.ends))
        ]

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the weights of all parts. `shape`: of the input, [B, ...]."""
        for part in self.parts:
            part.build(shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs of all units, [B, ..., units], on the device of the caller; penalties of weights are added."""
        outputs = []
        for part, device in zip(self.parts, self._devices, strict=True):
            values = [variable.value for variable in part.trainable_variables]
            output, *penalties = on_device(device, lambda *given, part=part: self._of(part, *given), inputs, *values)
            outputs.append(output)
            self.add_loss(penalties)
        return tf.concat(outputs, -1)

    def _of(self, part: keras.layers.Layer, inputs: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        with keras.StatelessScope(zip(part.trainable_variables, values)):
            output = part(inputs)
        return [output, *(penalty(value) for penalty, value in zip(self._penalties, values) if penalty)]


class WideNetwork(FlatNetwork):
    """A network whose wide layers are in parts, as a function of a flat vector of weights for each device.

    Attributes:
      parts: of each device.
      last: the first device, which returns the outputs.
    """

    def __init__(self, whole: FlatNetwork, devices: Sequence[str], least_units: int):
        """Cut a network.

        Args:
          devices: the first one has the layers that stay whole.
          least_units: layers with fewer units or filters stay whole.
        Raises:
          ValueError: it is a class of its own, has no such layer, or could not be put together again.
        """
        model, least = whole.model, max(least_units, len(devices))
        graph_of(model)
        self.cut = {layer.name: InParts(layer, devices) for layer in model.layers if can_be_cut(layer, least)}
        if not self.cut:
            raise ValueError(f"it has no Dense or convolution layer with {least} units or more that can be cut")
        super().__init__(keras.models.clone_model(model, clone_function=lambda layer: self.cut.get(layer.name, layer)))
        self.keep = whole.keep  # of the whole network's trace: a layer may be called several times a step
        self.last = devices[0]
        places = self._places(model)
        variables = self.model.trainable_variables
        self._numbers = [
            [number for number, variable in enumerate(variables) if places[id(variable)][0] == device]
            for device in range(len(devices))
        ]
        self.parts = [
            NetworkPart(
                device,
                np.concatenate([places[id(variables[number])][1] for number in numbers]),
                FlatLayout.of([variables[number] for number in numbers]),
                0 if index else whole.statistics.length,
                self._layers_on(index),
            )
            for index, (device, numbers) in enumerate(zip(devices, self._numbers, strict=True))
        ]
        together = np.sort(np.concatenate([part.positions for part in self.parts]))
        if not np.array_equal(together, np.arange(whole.weights.length)) or any(
            [v.path for v in of(model)] != [v.path for v in of(self.model)] for of in (statistics_of, seeds_of)
        ):
            raise ValueError("mode width can't cut it: a layer uses the weights of another one")

    def _places(self, model: keras.Model) -> dict[int, tuple[int, np.ndarray]]:
        """Return, by the id of each trainable variable, its device's number, and its positions in the whole vector."""
        layout = FlatLayout.of(model.trainable_variables)
        of_whole = zip(model.trainable_variables, np.split(np.arange(layout.length), np.cumsum(layout.sizes)[:-1]))
        places = {id(variable): (0, positions) for variable, positions in of_whole}
        for name, layer in self.cut.items():
            for number, (part, begin, end) in enumerate(zip(layer.parts, layer.ends, layer.ends[1:])):
                pairs = zip(part.trainable_variables, model.get_layer(name).trainable_variables, strict=True)
                for own, variable in pairs:
                    positions = places[id(variable)][1].reshape(variable.shape)[..., begin:end]
                    places[id(own)] = number, positions.ravel()
        return places

    def values_of(self, weights: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the variables' tensors from the vector of each device, each on its device."""
        values: dict[int, tf.Tensor] = {}
        for part, numbers, vector in zip(self.parts, self._numbers, weights, strict=True):
            values |= zip(numbers, on_device(part.device, part.layout.split, vector))
        return [values[number] for number in sorted(values)]

    def forward(
        self,
        weights: Sequence[tf.Tensor],
        statistics: Sequence[tf.Tensor],
        inputs: Mapping[str, tf.Tensor],
        random_state: tf.Tensor,
    ) -> Forward:
        """Run the forward pass; see `FlatNetwork.forward`. Of each device are weights, statistics, and the fresh ones."""
        passed = super().forward(weights, statistics[0], inputs, random_state)
        return passed._replace(fresh=[passed.fresh, *statistics[1:]])  # those are empty

    def _layers_on(self, device: int) -> str:
        """Return the layers of a device, by its number, with the units that it has of each."""
        found = [f"{name} {layer.ends[device]}-{layer.ends[device + 1] - 1}" for name, layer in self.cut.items()]
        whole = [layer.name for layer in self.model.layers if layer.name not in self.cut and layer.variables]
        return ", ".join(found) + (f"; whole: {', '.join(whole)}" if whole and not device else "")


def can_be_cut(layer: keras.layers.Layer, least_units: int) -> bool:
    """Return whether each output of a layer depends on the weights of its own unit alone, and there are enough units."""
    if type(layer) not in _CUT or getattr(layer, _CUT[type(layer)]) < least_units:
        return False
    activation, variables = layer.activation, layer.variables
    return (
        getattr(layer, "groups", 1) == 1
        and getattr(layer, "data_format", "channels_last") == "channels_last"
        and activation.__module__.startswith("keras.")
        and activation.__name__ in _OF_ONE_OUTPUT
        and layer.activity_regularizer is None
        and len(variables) == len(layer.trainable_variables) == 1 + layer.use_bias
        and all(type(variable.regularizer) in _SUMS_OVER_WEIGHTS for variable in variables)
    )
