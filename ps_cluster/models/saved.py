"""Load a model that Keras has saved: to go on from its weights, or to predict with what a run has left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ps_cluster.catalogue import doors
from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.errors import UserError
from ps_cluster.files import ownership
from ps_cluster.models.flat import as_arguments, layers_of

# The last layer of a regression's best model: it turns standard deviations into the target's units. Saved models carry
# the name, so it is one that nobody else gives to a layer.
UNITS = "ps_cluster_units"
_PASS_ON = ("Identity", "IdentityN", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient")
_COMPILED = ("_compile_loss", "_compile_metrics", "optimizer")


def load_saved(file: Path, spec: ExampleSpec) -> keras.Model:
    """Return the model of a .keras file.

    Keras's safe mode stays on. Layers of a user's own are looked up in the files of code that the user has named.

    Raises:
      ValueError, TypeError: it holds no model, one with a layer or loss that is in none of those files, or a regression
        whose units are not known.
    """
    model = load_finished(file, compiled=True)
    if OBJECTIVES[spec.objective].has_units and not any(map(_is_units, layers_of(model))):
        raise ValueError(
            "it is not known whether it returns the target's units or standard deviations, as no run here has saved "
            "it: load it in a build() that returns standard deviations (docs/own-network.md)"
        )
    return model


def without_units(model: keras.Model) -> keras.Model:
    """Return a model without the layer of units at its end, compiled as it was.

    Raises:
      ValueError: it has such a layer elsewhere.
    """
    if any(map(_is_units, layers_of(model))) and type(model).__module__.startswith("keras."):
        inputs, outputs = ends_of(model)
        bare = keras.Model(inputs, keras.tree.map_structure(_before_units, outputs), name=model.name)
        for name in _COMPILED:
            object.__setattr__(bare, name, getattr(model, name, None))  # Keras's own would track them as layers
        model = bare
    if any(map(_is_units, layers_of(model))):
        raise ValueError(
            f"the layer '{UNITS}' of a saved regression is within it, where standard deviations are trained: take the "
            "saved model without its last layer (docs/own-network.md)"
        )
    return model


def ends_of(model: keras.Model) -> tuple[Any, Any]:
    """Return the symbolic inputs and outputs of a model that has some."""
    if isinstance(model, keras.Sequential):  # has no `input` before it is called
        return model.inputs[0], model.outputs[0]
    return model.input, model.output


def _before_units(output: keras.KerasTensor) -> keras.KerasTensor:
    made = output._keras_history
    return made.operation._inbound_nodes[made.node_index].input_tensors[0] if _is_units(made.operation) else output


def _is_units(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Rescaling) and layer.name == UNITS


def load_finished(file: Path, *, compiled: bool = False) -> keras.Model:
    """Return the model of a .keras or .h5 file as it is. Safe mode and errors as in `load_saved`.

    Args:
      compiled: whether its loss and metrics are loaded too.
    Raises:
      UserError: it belongs to another user, and nobody has named it by --code.
    """
    if ownership.is_foreign(file) and not doors.is_trusted(file):
        raise UserError(
            f"'{file}' belongs to {ownership.name_of(file.stat().st_uid)}, and a model may run code: copy it if you trust "
            f"it, or add --code '{file}'"
        )
    custom = doors.defined_in_trusted()
    return keras.models.load_model(file, custom_objects=custom, compile=compiled, safe_mode=True)


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


def in_float32(model: keras.Model) -> keras.Model:
    """Make a model compute in float32, whatever it was trained in. Its variables are float32 already."""
    for layer in layers_of(model):
        if layer.compute_dtype == "bfloat16":
            layer.dtype_policy = "float32"
    return model


def predicting(model: keras.Model, spec: ExampleSpec) -> keras.Model:
    """Return a finished model with predictions as its only output, [B, outputs]: probabilities, or a target's values.

    A model that a user has compiled for probabilities has them already. Of several outputs the first is the prediction.
    """
    activation = "linear" if gives_predictions(model, spec) else OBJECTIVES[spec.objective].activation
    model = followed_by(model, keras.layers.Activation(activation, dtype="float32", name="predictions"), spec.inputs)
    return keras.Model(model.input, keras.tree.flatten(model.output)[0], name=model.name)


def gives_predictions(model: keras.Model, spec: ExampleSpec) -> bool:
    """Return whether the first output of a model has been through its objective's activation, as probabilities have."""
    return _last_of(model, spec).type.lower() == OBJECTIVES[spec.objective].activation


def _last_of(model: keras.Model, spec: ExampleSpec) -> tf.Operation:
    """Return the operation that makes a model's first output."""
    fields = spec.inputs.items()
    inputs = {name: tf.TensorSpec([None, *field.shape], field.network_dtype) for name, field in fields}
    graph = tf.function(lambda given: keras.tree.flatten(model(as_arguments(given)))[0], autograph=False)
    return last_operation(graph.get_concrete_function(inputs).outputs[0])


def last_operation(tensor: tf.Tensor) -> tf.Operation:
    """Return the operation that has computed the values of a tensor in a graph."""
    while tensor.op.type in _PASS_ON:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor.op
