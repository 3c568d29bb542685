"""Follow the outputs of a network back through its graph, to the last activation and the last trained weights."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

# Three groups of TensorFlow's operations: those that compute probabilities, those that together compute the mean of several
# tensors, and those that return their input unchanged or in another form.
_PROBABILITIES = ("Softmax", "Sigmoid")
_MEANS = ("AddV2", "AddN", "RealDiv", "Mul", "Mean", "Pack")
_PASS_ON = ("Identity", "IdentityN", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient")


def last_activation(tensor: tf.Tensor) -> tf.Operation | None:
    """Return the softmax or sigmoid operation that made a tensor of a graph, or None if the tensor was made otherwise.

    For a mean of several tensors that were all made by a softmax or sigmoid, return the operation of the last tensor.
    """
    tensor = _source_of(tensor)
    if tensor.op.type not in _MEANS:
        return tensor.op if tensor.op.type in _PROBABILITIES else None
    found = None
    for part in tensor.op.inputs:
        if part.op.type != "Const":
            found = last_activation(part)
            if found is None:
                break
    return found


# _PRODUCTS: last operations of layers without activation. _ACTIVATIONS: TensorFlow's operation → Keras's activation.
_PRODUCTS = ("MatMul", "BatchMatMulV2", "Einsum", "Conv2D", "Conv3D", "Conv2DBackpropInput", "DepthwiseConv2dNative")
_ACTIVATIONS = {
    "Sigmoid": "sigmoid", "Softmax": "softmax", "Tanh": "tanh", "Relu": "relu", "Relu6": "relu6", "LeakyRelu": "leaky_relu",
    "Elu": "elu", "Selu": "selu", "Softplus": "softplus", "Softsign": "softsign", "Exp": "exponential",
}  # fmt: skip


def activation_name(tensor: tf.Tensor) -> str:
    """Return Keras's name of the activation that made a tensor of a graph, or "" if no known activation made it."""
    return _ACTIVATIONS.get(_source_of(tensor).op.type, "")


class OutputChanges(NamedTuple):
    """The ways in which trained weights can change a network's outputs: by multiplying them, or by adding to them."""

    any_scale: bool  # whether the weights can multiply the outputs by any number
    any_offset: bool = False  # whether the weights can add any number to the outputs
    unscaled: bool = True  # false if the outputs are multiplied by a constant, which may set their units


def output_changes_of(tensor: tf.Tensor, trainable: frozenset[str]) -> OutputChanges:
    """Return how trained weights can change a tensor of a graph.

    `trainable`: the names of the placeholders that stand for the trained variables in the graph.
    """
    tensor = _source_of(tensor)
    operation, parts = tensor.op, list(tensor.op.inputs)
    if operation.type in _PRODUCTS:
        # A product is linear in each factor. So a dot product of two towers is linear in the last layer of each tower.
        return OutputChanges(
            any(_is_trained(part, trainable) or output_changes_of(part, trainable).any_scale for part in parts)
        )
    if operation.type == "Mean":
        return output_changes_of(parts[0], trainable)
    if operation.type == "BiasAdd":
        if not _is_trained(parts[1], trainable):
            return OutputChanges(False)  # the weights can't scale a bias that is not trained
        return output_changes_of(parts[0], trainable)._replace(any_offset=True)
    if operation.type == "Mul" and (constants := [part for part in parts if tf.get_static_value(part) is not None]):
        others = [part for part in parts if part is not constants[0]]
        return output_changes_of(others[0], trainable)._replace(unscaled=False) if others else OutputChanges(False)
    if operation.type in ("AddV2", "AddN"):
        parts = [part for part in parts if not _is_zero(part)]
        biases = [part for part in parts if _is_trained(part, trainable)]
        found = [output_changes_of(part, trainable) for part in parts if not _is_trained(part, trainable)]
        scale, place, unscaled = (list(values) for values in zip(*found)) if found else ([False], [False], [True])
        return OutputChanges(all(scale), any(place) or bool(biases), all(unscaled))
    return OutputChanges(False)


def _is_zero(tensor: tf.Tensor) -> bool:
    value = tf.get_static_value(tensor)
    return value is not None and not value.any()


def _is_trained(tensor: tf.Tensor, trainable: frozenset[str]) -> bool:
    """Return whether a tensor is the value of a variable that is trained."""
    tensor = _source_of(tensor)
    return tensor.op.type == "ReadVariableOp" and tensor.op.inputs[0].name in trainable


def _source_of(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that `tensor` was made from by operations that only cast, reshape or pass on their input."""
    while tensor.op.type in _PASS_ON:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor
