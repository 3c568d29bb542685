"""Divide the units or filters of each wide layer of a network among several devices.

    device 0: units 0 to 31 of each wide layer, and all layers that stay whole; device 0 also joins the outputs
    device 1: units 32 to 63 of each wide layer

Each part computes its own outputs, forward and backward, from the whole input of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.models.cuts import NetworkPart, PartedForward, compute_on, functional_model_of
from ps_cluster.models.embedding_tables import NO_TABLES
from ps_cluster.models.flat import Arguments, FlatLayout, FlatNetwork, statistics_of
from ps_cluster.models.keras_losses import is_of_keras
from ps_cluster.models.pure import seeds_of
from ps_cluster.models.rows import NO_ROWS

# Layers whose kernel and bias have units or filters as their last axis → the name of the argument with their number.
_WIDTH_ARGUMENTS = {
    keras.layers.Dense: "units",
    keras.layers.Conv1D: "filters",
    keras.layers.Conv2D: "filters",
    keras.layers.Conv3D: "filters",
}
# Activations that compute each output separately. A softmax is not among them, because it needs all outputs.
_OF_ONE_OUTPUT = (
    "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu", "linear", "mish", "relu", "relu6", "selu",
    "sigmoid", "silu", "softplus", "softsign", "tanh",
)  # fmt: skip
# Regularisers whose penalty is a sum over the weights, so that the penalties of the parts add up to that of the layer.
_SUMS_OVER_WEIGHTS = (type(None), keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


class DividedLayer(keras.layers.Layer):
    """A layer whose units or filters are on several devices: part p has the units `ends[p]` to `ends[p + 1] - 1`."""

    def __init__(self, whole: keras.layers.Layer, devices: Sequence[str]):
        # Without autocast this layer gets weights in their own dtype. Each part casts them and its input on its device.
        super().__init__(name=whole.name, dtype=whole.dtype_policy, autocast=False)
        self.supports_masking = whole.supports_masking
        self.compute_output_shape = whole.compute_output_shape
        self._devices = devices
        self._penalties = [variable.regularizer for variable in whole.trainable_variables]
        width = _WIDTH_ARGUMENTS[type(whole)]
        units = getattr(whole, width)
        self.ends = tuple(units * part // len(devices) for part in range(len(devices) + 1))
        settings = whole.get_config() | {"kernel_initializer": "zeros", "bias_initializer": "zeros"}
        settings |= {"kernel_regularizer": None, "bias_regularizer": None, "activation": whole.activation}
        self.parts = [
            type(whole).from_config(settings | {width: end - begin, "name": f"part_{number}"})
            for number, (begin, end) in enumerate(pairwise(self.ends))
        ]

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Create the weights of all parts. `shape`: the shape of the input, [B, ...]."""
        for part in self.parts:
            part.build(shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the outputs of all units, [B, ..., units], on the caller's device.

        The losses of the regularisers are passed to `add_loss`.
        """
        outputs = []
        for part, device in zip(self.parts, self._devices, strict=True):
            values = [variable.value for variable in part.trainable_variables]
            output, *penalties = compute_on(device, partial(self._run, part), inputs, *values)
            outputs.append(output)
            self.add_loss(penalties)
        return tf.concat(outputs, -1)

    def _run(self, part: keras.layers.Layer, inputs: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        """Return the output of a part of the layer, computed with `values` as the values of the part's variables.

        The output is followed by the regularisation loss, [], of each variable that has a regulariser.
        """
        with keras.StatelessScope(zip(part.trainable_variables, values)):
            output = part(inputs)
        return [output, *(penalty(value) for penalty, value in zip(self._penalties, values) if penalty)]


class WideNetwork:
    """A network whose wide layers are divided over devices, as a function of a vector of weights for each device."""

    def __init__(self, whole: FlatNetwork, devices: Sequence[str], least_units: int):
        """Cut the wide layers of the network `whole` into one part for each device.

        A layer with fewer than `least_units` units stays whole. The first device has all layers that stay whole.
        Raises ValueError for a user's model class, a network without a layer to cut, or a layer that shares weights.
        """
        model, least = whole.model, max(least_units, len(devices))
        functional_model_of(model)
        self.cut = {layer.name: DividedLayer(layer, devices) for layer in model.layers if can_be_divided(layer, least)}
        if not self.cut:
            raise ValueError(f"it has no Dense or convolution layer with {least} units or more that can be cut")
        divided = keras.models.clone_model(model, clone_function=lambda layer: self.cut.get(layer.name, layer))
        self._network = FlatNetwork(divided)
        # Only the whole network counts how often a step calls each layer, so `keep` comes from there.
        self._network.keep = whole.keep
        self.output_device = devices[0]
        places = self._places(model)
        variables = divided.trainable_variables
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
            [v.path for v in of(model)] != [v.path for v in of(divided)] for of in (statistics_of, seeds_of)
        ):
            raise ValueError("mode 'width' can't divide the network: a layer uses the weights of another layer")

    def _places(self, model: keras.Model) -> dict[int, tuple[int, np.ndarray]]:
        """Return a dictionary: id() of a trainable variable → its device number, its positions in the whole vector."""
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

    def forward(
        self,
        weights: Sequence[tf.Tensor],
        statistics: Sequence[tf.Tensor],
        inputs: Mapping[str, tf.Tensor],
        random_state: tf.Tensor,
    ) -> PartedForward:
        """Run the forward pass, as described in `PartedNetwork.forward`. Each part belongs to one device."""
        given = Arguments(self._values_of(weights), statistics[0], inputs, random_state)
        passed, _ = self._network.run(given, NO_TABLES.lookup_from([], NO_ROWS))
        # The other devices have no statistics: theirs are empty.
        return PartedForward(passed.outputs, [passed.fresh, *statistics[1:]], passed.losses)

    def _values_of(self, weights: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Split the vectors of the devices into a tensor for each variable. Each tensor stays on its device."""
        values: dict[int, tf.Tensor] = {}
        for part, numbers, vector in zip(self.parts, self._numbers, weights, strict=True):
            values |= zip(numbers, compute_on(part.device, part.layout.split, vector))
        return [values[number] for number in sorted(values)]

    def _layers_on(self, device: int) -> str:
        """Describe, for the log, the layers on the device with this number, and which units of each layer it has."""
        found = [f"{name} {layer.ends[device]}-{layer.ends[device + 1] - 1}" for name, layer in self.cut.items()]
        whole = [layer.name for layer in self._network.model.layers if layer.name not in self.cut and layer.variables]
        return ", ".join(found) + (f"; whole: {', '.join(whole)}" if whole and not device else "")


def can_be_divided(layer: keras.layers.Layer, least_units: int) -> bool:
    """Return whether a layer can be divided: it has enough units, and each output depends only on its own weights."""
    if type(layer) not in _WIDTH_ARGUMENTS or getattr(layer, _WIDTH_ARGUMENTS[type(layer)]) < least_units:
        return False
    activation, variables = layer.activation, layer.variables
    return (
        getattr(layer, "groups", 1) == 1
        and getattr(layer, "data_format", "channels_last") == "channels_last"
        and is_of_keras(activation)
        and activation.__name__ in _OF_ONE_OUTPUT
        and layer.activity_regularizer is None
        and len(variables) == len(layer.trainable_variables) == 1 + layer.use_bias
        and all(type(variable.regularizer) in _SUMS_OVER_WEIGHTS for variable in variables)
    )
