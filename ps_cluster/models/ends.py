"""Find out what the outputs of a network are: scores or probabilities, and in which units a regression returns its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ps_cluster.config.objectives import OBJECTIVES, ExampleSpec, Field
from ps_cluster.models.flat import as_arguments
from ps_cluster.private_names import layers_of, wrapped_by

# Layers that a saved model ends with. They say what its outputs are, where the layers before them don't. Saved models carry
# the names, so each is one that nobody else gives to a layer.
UNITS = "ps_cluster_units"  # turns a regression's standard deviations into the target's units
OWN_UNITS = "ps_cluster_own_units"  # does nothing: the outputs of a regression are in the target's units
SCORES = "ps_cluster_scores_not_probabilities"  # does nothing
PROBABILITIES = "ps_cluster_probabilities"  # does nothing: the loss alone says that the outputs are probabilities


def is_marked(model: keras.Model, mark: str) -> bool:
    """Return whether a model has the layer `OWN_UNITS`, `SCORES` or `PROBABILITIES`."""
    return any(isinstance(layer, keras.layers.Activation) and layer.name == mark for layer in layers_of(model))


def mark(name: str) -> keras.Layer:
    """Return a layer that does nothing but to say what the outputs are."""
    return keras.layers.Activation("linear", dtype="float32", name=name)


def ends_of(model: keras.Model) -> tuple[Any, Any]:
    """Return the symbolic inputs and outputs of a model that has some."""
    if isinstance(model, keras.Sequential):  # has no `input` before it is called
        return model.inputs[0], model.outputs[0]
    return model.input, model.output


def followed_by(model: keras.Model, layer: keras.Layer, inputs: Mapping[str, Field]) -> keras.Model:
    """Return a model whose outputs go through one more layer.

    Args:
      inputs: of the examples; a subclassed model knows its own by example only.
    """
    if not getattr(model, "inputs", None):
        given = {name: keras.Input(field.shape, name=name, dtype=field.network_dtype) for name, field in inputs.items()}
        arguments = as_arguments(given)
        return keras.Model(arguments, keras.tree.map_structure(layer, model(arguments)))
    start, outputs = ends_of(model)
    return keras.Model(start, keras.tree.map_structure(layer, outputs), name=model.name)


def with_mark(model: keras.Model, name: str, inputs: Mapping[str, Field]) -> keras.Model:
    """Return a model that says by its last layer what its outputs are. A Sequential stays one."""
    if not isinstance(model, keras.Sequential):
        return followed_by(model, mark(name), inputs)
    given = model.inputs[0]
    start = keras.Input(batch_shape=given.shape, dtype=given.dtype, name=given.name)
    return keras.Sequential([start, *model.layers, mark(name)], name=model.name)


class NetworkEnd:
    """The end of a network: its outputs in a graph outside of training, and what they are."""

    def __init__(self, model: keras.Model, spec: ExampleSpec):
        """Keep the model. It is traced when something is asked that its layers alone don't say."""
        self._model, self._spec = model, spec

    @cached_property
    def _graph(self) -> _OutputsGraph:
        return _OutputsGraph.of(self._model, self._spec)

    @property
    def structure(self) -> Any:
        """The outputs' forms, as the model returns them."""
        return self._graph.structure

    @property
    def is_one_of_two(self) -> bool:
        """True if two classes are told apart by one number: the score, or the probability, of the second class."""
        spec = self._spec
        two = OBJECTIVES[spec.objective].activation == "softmax" and len(spec.classes) == 2
        return two and self._graph.tensors[0].shape[-1] == 1

    def gives_probabilities(self, loss: keras.Loss | None = None) -> bool:
        """Return whether the first output is probabilities already, so that no activation has to follow.

        The last activation says it, or the layer `PROBABILITIES`. Where there is neither, the loss does: outputs that Keras
        compares with labels of 0 and 1 place by place are probabilities, whatever has made them. (The largest of several
        outputs is that of the predicted class in any case; so there the softmax follows, and the loss is not asked.)

        Args:
          loss: of the first output, by compile().
        """
        objective = OBJECTIVES[self._spec.objective]
        if not objective.has_accuracy:
            return False
        if not self.is_estimate or self.is_marked:
            return True
        is_of_places = self.is_one_of_two or objective.activation == "sigmoid"
        return loss is not None and is_of_places and _takes_probabilities(loss)

    @property
    def is_estimate(self) -> bool:
        """True if no activation keeps the first output between 0 and 1."""
        return last_activation(self._graph.tensors[0]) is None

    @property
    def is_marked(self) -> bool:
        """True if a layer at the end says that the outputs are probabilities."""
        return is_marked(self._model, PROBABILITIES)

    def why_own_units(self, losses: Sequence[keras.Loss]) -> str:
        """Return why a regression is trained in the target's own units; "" where standard deviations do as well.

        They do if the best network for the standardised targets is the best one for the targets. That follows from the
        loss, and from an end that can return any number. Where it is not known that it does, targets stay as they are.

        Args:
          losses: of compile(), one for each output that has one; none of a model that was not compiled, which is trained
            by the squared error in standard deviations.
        """
        if is_marked(self._model, OWN_UNITS):
            return "a saved model returns them so"
        for loss in losses:
            if not (_is_of_keras(loss) and wrapped_by(loss) in _IN_ANY_UNITS):
                return f"loss {loss.name}"
        if len({wrapped_by(loss) for loss in losses}) > 1:
            return "losses of several kinds are added up"
        if losses and self._graph.adds_losses:
            return "regularisers are added to the loss"
        for tensor in self._graph.tensors:
            found = _reach(tensor, self._graph.trainable)
            if not (found.any_scale and (not losses or found.any_place and found.unscaled)):
                last = _before_passing(tensor).op.type
                return (
                    f"it ends in {_ACTIVATIONS[last]}" if last in _ACTIVATIONS else "its end is not known to be linear"
                )
        return ""


@dataclass(frozen=True)
class _OutputsGraph:
    """A network's outputs in a graph.

    Attributes:
      tensors: float [B, outputs] each.
      structure: their forms, as the model returns them.
      trainable: names of the graph's placeholders of variables that are trained.
      adds_losses: whether layers add losses, such as regularisers.
    """

    tensors: Sequence[tf.Tensor]
    structure: Any
    trainable: frozenset[str]
    adds_losses: bool

    @classmethod
    def of(cls, model: keras.Model, spec: ExampleSpec) -> _OutputsGraph:
        fields = spec.inputs.items()
        inputs = {name: tf.TensorSpec([None, *field.shape], field.network_dtype) for name, field in fields}
        losses: list[tf.Tensor] = []

        def outputs(given: Mapping[str, tf.Tensor]) -> Any:
            found = model(as_arguments(given))
            losses.extend(model.losses)
            return found

        graph = tf.function(outputs, autograph=False).get_concrete_function(inputs)
        handles = {id(variable.value.handle) for variable in model.trainable_variables}
        trainable = {inner.name for outer, inner in graph.graph.captures if id(outer) in handles}
        return cls(graph.outputs, graph.structured_outputs, frozenset(trainable), bool(losses))


# Probabilities or scores?

_PROBABILITIES = ("Softmax", "Sigmoid")  # operations of TensorFlow
_OF_MEANS = ("AddV2", "AddN", "RealDiv", "Mul", "Mean", "Pack")
_PASS_ON = ("Identity", "IdentityN", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient")

# Losses of Keras whose attribute `from_logits` says whether they take scores.
OF_LOGITS = (
    keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy, keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy, keras.losses.sparse_categorical_crossentropy,
)  # fmt: skip
# Losses of Keras that compare the outputs for several classes with each other.
OF_SEVERAL_CLASSES = (
    keras.losses.categorical_crossentropy, keras.losses.categorical_focal_crossentropy, keras.losses.categorical_hinge,
    keras.losses.sparse_categorical_crossentropy, keras.losses.categorical_generalized_cross_entropy,
)  # fmt: skip
# Losses of Keras that are for scores alone.
_OF_SCORES = (
    keras.losses.hinge, keras.losses.squared_hinge, keras.losses.categorical_hinge, keras.losses.circle, keras.losses.ctc,
)  # fmt: skip


def _takes_probabilities(loss: keras.Loss) -> bool:
    function = wrapped_by(loss) if _is_of_keras(loss) else None
    if function in OF_LOGITS:
        return not loss.get_config().get("from_logits", False)
    return _is_of_keras(function) and function not in _OF_SCORES


def _is_of_keras(found: Any) -> bool:
    """Return whether an object's class, or a function, is Keras's own, so that it is known what it computes."""
    kind = found if hasattr(found, "__qualname__") else type(found)
    return getattr(kind, "__module__", "").startswith("keras.")


def last_activation(tensor: tf.Tensor) -> tf.Operation | None:
    """Return the operation that made a tensor of a graph, or those that it is the mean of, probabilities; None: none did."""
    tensor = _before_passing(tensor)
    if tensor.op.type not in _OF_MEANS:
        return tensor.op if tensor.op.type in _PROBABILITIES else None
    found = None
    for part in tensor.op.inputs:
        if part.op.type != "Const":
            found = last_activation(part)
            if found is None:
                break
    return found


# Standard deviations or the target's own units?

# Losses of Keras whose minimum moves and grows with the targets: d(a y + b, a o + b) = c d(y, o). So a network can be trained
# on standardised targets, and returns the same once its outputs are turned back. Not among them: Huber and log-cosh, which
# have a width in the target's units; relative errors, logarithms, Poisson, cosine and Kullback-Leibler, to which the place
# of zero matters; and all that take labels.
_IN_ANY_UNITS = (keras.losses.mean_squared_error, keras.losses.mean_absolute_error)
# Operations of TensorFlow at the end of a layer without an activation, and Keras's names of others.
_PRODUCTS = ("MatMul", "BatchMatMulV2", "Einsum", "Conv2D", "Conv3D", "Conv2DBackpropInput", "DepthwiseConv2dNative")
_ACTIVATIONS = {
    "Sigmoid": "sigmoid", "Softmax": "softmax", "Tanh": "tanh", "Relu": "relu", "Relu6": "relu6", "LeakyRelu": "leaky_relu",
    "Elu": "elu", "Selu": "selu", "Softplus": "softplus", "Softsign": "softsign", "Exp": "exponential",
}  # fmt: skip


class _Reach(NamedTuple):
    """Which changes of a network's outputs its own weights can make.

    Attributes:
      any_scale: multiply them by any number.
      any_place: add any number to them.
      unscaled: no constant of the network multiplies them, by which their units may have been chosen.
    """

    any_scale: bool
    any_place: bool = False
    unscaled: bool = True


def _reach(tensor: tf.Tensor, trainable: frozenset[str]) -> _Reach:
    tensor = _before_passing(tensor)
    operation, parts = tensor.op, list(tensor.op.inputs)
    if operation.type in _PRODUCTS:
        return _Reach(any(_is_trained(part, trainable) for part in parts))
    if operation.type == "Mean":
        return _reach(parts[0], trainable)
    if operation.type == "BiasAdd":
        return _reach(parts[0], trainable)._replace(any_place=_is_trained(parts[1], trainable))
    if operation.type == "Mul" and (constants := [part for part in parts if tf.get_static_value(part) is not None]):
        others = [part for part in parts if part is not constants[0]]
        return _reach(others[0], trainable)._replace(unscaled=False) if others else _Reach(False)
    if operation.type in ("AddV2", "AddN"):
        parts = [part for part in parts if not _is_zero(part)]
        biases = [part for part in parts if _is_trained(part, trainable)]
        found = [_reach(part, trainable) for part in parts if not _is_trained(part, trainable)]
        scale, place, unscaled = (list(values) for values in zip(*found)) if found else ([False], [False], [True])
        return _Reach(all(scale), any(place) or bool(biases), all(unscaled))
    return _Reach(False)


def _is_zero(tensor: tf.Tensor) -> bool:
    value = tf.get_static_value(tensor)
    return value is not None and not value.any()


def _is_trained(tensor: tf.Tensor, trainable: frozenset[str]) -> bool:
    """Return whether a tensor is the value of a variable that is trained."""
    tensor = _before_passing(tensor)
    return tensor.op.type == "ReadVariableOp" and tensor.op.inputs[0].name in trainable


def _before_passing(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that operations before this one have only passed on."""
    while tensor.op.type in _PASS_ON:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor
