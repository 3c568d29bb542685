"""Mark a saved model: add a last layer that shows what the outputs mean, if no other layer shows it.

Such a layer is called a mark. It is recognised by its name, which is a name that no user gives to a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ps_cluster.config.objectives import ArrayField
from ps_cluster.models.flat import as_arguments
from ps_cluster.models.keras_losses import is_of_keras
from ps_cluster.private_names import copy_compiled, layers_of, origin_of

UNITS = "ps_cluster_units"  # turns a regression's standard deviations into the target's units
OWN_UNITS = "ps_cluster_own_units"  # does nothing: the outputs of a regression are in the target's units
SCORES = "ps_cluster_scores_not_probabilities"  # does nothing: the outputs are scores
PROBABILITIES = "ps_cluster_probabilities"  # does nothing: the outputs are probabilities, which only the loss showed
MARKS = (UNITS, OWN_UNITS, SCORES, PROBABILITIES)


def symbolic_inputs_of(model: keras.Model) -> list[keras.KerasTensor]:
    """Return the symbolic inputs of a model; [] for a user's model class, because Keras does not know its inputs."""
    found: list[keras.KerasTensor] = keras.tree.flatten(getattr(model, "inputs", None) or ())
    return found


def is_marked(model: keras.Model, mark: str) -> bool:
    """Return whether a model has a layer with the name `mark`, which is one of `MARKS`."""
    return any(layer.name == mark for layer in layers_of(model))


def followed_by(model: keras.Model, layer: keras.Layer, inputs: Mapping[str, ArrayField]) -> keras.Model:
    """Return a model in which `layer` follows the outputs.

    `inputs`: the inputs of the network by name, which are used only if the model is subclassed.
    """
    if not symbolic_inputs_of(model):
        given = {name: keras.Input(field.shape, name=name, dtype=field.network_dtype) for name, field in inputs.items()}
        arguments = as_arguments(given)
        return keras.Model(arguments, keras.tree.map_structure(layer, model(arguments)))
    start, outputs = _ends_of(model)
    return keras.Model(start, keras.tree.map_structure(layer, outputs), name=model.name)


def with_mark(model: keras.Model, name: str, inputs: Mapping[str, ArrayField]) -> keras.Model:
    """Return a model with the mark `name` as its last layer. A Sequential stays a Sequential."""
    mark = keras.layers.Activation("linear", dtype="float32", name=name)
    if not isinstance(model, keras.Sequential):
        return followed_by(model, mark, inputs)
    given = model.inputs[0]
    start = keras.Input(batch_shape=given.shape, dtype=given.dtype, name=given.name)
    return keras.Sequential([start, *model.layers, mark], name=model.name)


def without_units(model: keras.Model) -> keras.Model:
    """Return a model without its last layer `UNITS`, which converts outputs to the target's units.

    The returned model is compiled as before. A model that does not have this layer is returned unchanged. Raises
    ValueError if the layer is elsewhere in the model.
    """
    if is_marked(model, UNITS) and is_of_keras(model):
        inputs, outputs = _ends_of(model)
        bare = keras.Model(inputs, keras.tree.map_structure(_before_units, outputs), name=model.name)
        copy_compiled(model, to=bare)
        model = bare
    if is_marked(model, UNITS):
        raise ValueError(
            f"it contains the layer '{UNITS}' of a saved regression, which converts the outputs to the target's units, but "
            "training needs outputs in standard deviations: leave out the last layer of the saved model "
            "(docs/extending.md#your-own-network)"
        )
    return model


def _before_units(output: keras.KerasTensor) -> keras.KerasTensor:
    layer, given = origin_of(output)
    return given[0] if layer.name == UNITS else output


def _ends_of(model: keras.Model) -> tuple[Any, Any]:
    """Return the symbolic inputs and the outputs of a model that is not subclassed."""
    if isinstance(model, keras.Sequential):  # a Sequential has no `input` before it is called
        return model.inputs[0], model.outputs[0]
    return model.input, model.output
