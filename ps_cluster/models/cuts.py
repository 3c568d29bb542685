"""Provide what stages (stages.py) and divided layers (width.py) share: both divide a network over several devices.

Both are pure functions with a vector of weights for each device. A device computes both the forward and the backward
pass of its part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.models.flat import FlatLayout
from ps_cluster.private_names import calls_of, functional_of


@dataclass(frozen=True)
class NetworkPart:
    """A device's share of a network."""

    device: str
    positions: np.ndarray  # int64 [k], of its weights in the vector of the whole network
    layout: FlatLayout  # of its weights
    statistics: int  # the number of them. Those of all parts, end to end, are those of the network
    layers: str  # the names of its layers, for the log


def on_device(device: str, function: Callable[..., Any], *given: tf.Tensor) -> Any:
    """Compute `function(*given)` on a device, and later its backward pass too. Return its tensors, in any structure.

    With `tf.device` alone, TensorFlow would compute the gradient on the device of the caller.
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


def graph_of(model: keras.Model) -> Any:
    """Return the functional model of a network: the network itself, or that in a Sequential. Raises ValueError for a class."""
    is_keras_class = type(model).__module__.startswith("keras.")
    graph: Any = functional_of(model) if isinstance(model, keras.Sequential) else model
    if not is_keras_class or calls_of(graph) is None:
        raise ValueError(
            "only a keras.Sequential, or a keras.Model(inputs, outputs), can be cut; this one is a class of its own "
            f"({type(model).__name__}), and only its `call` knows how its layers are connected"
        )
    return graph
