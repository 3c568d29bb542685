"""Provide the types and functions that stages.py and width.py share.

Both divide a network over several devices: into stages of successive layers, or by cutting each wide layer into parts.
The divided network is a pure function that takes one vector of weights for each device. Each device computes the
forward and the backward pass of its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, TypeVarTuple

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.models.flat import FlatLayout
from ps_cluster.models.keras_losses import is_of_keras
from ps_cluster.models.pure import Outputs
from ps_cluster.private_names import calls_of, functional_of

Tensors = TypeVarTuple("Tensors")
Result = TypeVar("Result")


@dataclass(frozen=True)
class NetworkPart:
    """The part of a network that one device computes."""

    device: str
    positions: np.ndarray  # int64 [k], the positions of its weights in the vector of the whole network
    layout: FlatLayout  # the layout of its weights
    statistics: (
        int  # the number of its statistics. The statistics of all parts, end to end, are the network's statistics
    )
    layers: str  # the names of its layers, for the log


class PartedForward(NamedTuple):
    """The result of a divided network's forward pass in training mode, like `flat.Forward` for an undivided network."""

    outputs: Outputs
    fresh: list[tf.Tensor]  # for each part, float32 [m of the part]: `flat.Forward.fresh` of its statistics
    losses: list[tf.Tensor]  # [] each, as in `flat.Forward`


class PartedNetwork(Protocol):
    """A network that is divided over devices, as a pure function that takes one vector of weights for each part."""

    parts: list[NetworkPart]
    output_device: str  # the device that returns the outputs

    def forward(
        self,
        weights: Sequence[tf.Tensor],
        statistics: Sequence[tf.Tensor],
        inputs: Mapping[str, tf.Tensor],
        random_state: tf.Tensor,
    ) -> PartedForward:
        """Run the forward pass in training mode. Inputs and random state are as in `flat.Arguments`.

        Args:
          weights: for each part, [n of the part].
          statistics: for each part, float32 [m of the part].
        """


def compute_on(device: str, function: Callable[[*Tensors], Result], *given: *Tensors) -> Result:
    """Compute `function(*given)`, and later its backward pass, on a device. The result is any structure of tensors.

    With `tf.device` alone, TensorFlow would compute the gradient on the device of the caller.
    """

    @tf.custom_gradient
    def forward(*arrived: *Tensors) -> tuple[Result, Callable[..., Sequence[tf.Tensor]]]:
        with tf.GradientTape() as tape:
            tape.watch(arrived)
            outputs = function(*arrived)

        def backward(*upstream: tf.Tensor) -> Sequence[tf.Tensor]:
            zeros = tf.UnconnectedGradients.ZERO
            with tf.device(device):
                gradients: Sequence[tf.Tensor] = tape.gradient(outputs, arrived, upstream, unconnected_gradients=zeros)
            return gradients

        return outputs, backward

    with tf.device(device):
        found: Result = forward(*given)
    return found


def functional_model_of(model: keras.Model) -> keras.Model:
    """Return the functional model that a Sequential contains, or `model` itself if it is a functional model.

    Raises ValueError for other models, such as subclassed ones.
    """
    graph = functional_of(model) if isinstance(model, keras.Sequential) else model
    if not is_of_keras(model) or calls_of(graph) is None:
        raise ValueError(
            "only a keras.Sequential or a keras.Model(inputs, outputs) can be divided; this model has a class of its "
            f"own ({type(model).__name__}), and only its `call` knows how its layers are connected"
        )
    return graph
