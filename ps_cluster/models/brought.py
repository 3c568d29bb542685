"""Look over a network that a user brings: build it, and refuse by name what training here would lose."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.models.flat import FlatNetwork, as_arguments, layers_of

_PROBABILITIES = ("softmax", "sigmoid")
# Methods of a model that decide how it is trained, and are not called here.
_OWN_LOOP = ("train_step", "compute_loss", "compute_metrics", "fit")


def look_over(model: Any, spec: ExampleSpec) -> None:
    """Build a user's model if it is not built yet, and check that it can be trained here.

    Raises:
      ValueError: it can't; says why.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"it is {type(model).__name__}, not a keras.Model")
    if not model.built or not model.variables:  # a subclassed model makes its variables in the first call
        model(as_arguments({name: tf.zeros([1, *field.shape], _dtype(field)) for name, field in spec.inputs.items()}))
    _check_class(model)
    _check_variables(model)
    _check_scores(model, spec)
    # Its losses and metrics stay. But a copy of it, or the saved model, would name them, and Keras reads none of a user's.
    model.compiled = False
    check_outputs(model, spec, _outputs(model, spec))


def _dtype(field: Field) -> str:
    return "float32" if field.is_image else field.dtype


def _outputs(model: keras.Model, spec: ExampleSpec) -> Any:
    """Return the specs of the outputs, as found by tracing a step's forward pass."""
    network = FlatNetwork(model)
    inputs = {name: tf.TensorSpec([None, *field.shape], _dtype(field)) for name, field in spec.inputs.items()}
    graph = tf.function(network.forward, autograph=False).get_concrete_function(
        tf.TensorSpec([network.weights.length]),
        tf.TensorSpec([network.statistics.length]),
        inputs,
        tf.TensorSpec([2], tf.int32),
    )
    return graph.structured_outputs.outputs


def _check_class(model: keras.Model) -> None:
    for name in _OWN_LOOP:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(f"its class has a {name} of its own, which is not called here: bring a loss by compile()")
    for layer in layers_of(model):
        if layer.compute_dtype == "float16":
            raise ValueError(f"layer '{layer.name}' computes in float16, which needs loss scaling: take bfloat16")
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise ValueError(f"layer '{layer.name}' has synchronized=True, which workers here don't do: leave it out")
    keras.saving.serialize_keras_object(model)  # the best model is saved


def _check_variables(model: keras.Model) -> None:
    if not model.trainable_variables:
        raise ValueError("it has no weights to train")
    for variable in model.variables:
        if variable.trainable and variable.constraint is not None:
            name = type(variable.constraint).__name__
            raise ValueError(f"variable '{variable.path}' has a constraint ({name}), which is not applied here")
        is_float = "float" in variable.dtype
        if variable.dtype != "float32" and (is_float or variable.trainable):
            raise ValueError(
                f"variable '{variable.path}' is {variable.dtype}: only float32 ones are trained; a mixed precision "
                "policy leaves them so"
            )


def _check_scores(model: keras.Model, spec: ExampleSpec) -> None:
    """Raise ValueError where the usual loss, which takes scores, would be given probabilities."""
    last = model.layers[-1]
    activation = getattr(getattr(last, "activation", None), "__name__", type(last).__name__.lower())
    if activation in _PROBABILITIES and model._compile_loss is None and OBJECTIVES[spec.objective].has_accuracy:
        raise ValueError(
            f"layer '{last.name}' returns probabilities ({activation}), where scores are expected: leave {activation} "
            "out, or compile() it with a loss that takes probabilities"
        )


def check_outputs(model: keras.Model, spec: ExampleSpec, outputs: Any) -> None:
    """Raise ValueError if the outputs are not what the examples ask for, or are several without a loss for each."""
    flat = keras.tree.flatten(outputs)
    shapes = [tuple(output.shape) for output in flat]
    if not shapes or set(shapes) != {(None, spec.outputs)}:
        raise ValueError(f"it returns {shapes}, not {spec.outputs} numbers for each")
    if len(flat) > 1 and model._compile_loss is None:
        raise ValueError(f"it returns {len(flat)} outputs: compile() it with a loss for each, and loss_weights")
