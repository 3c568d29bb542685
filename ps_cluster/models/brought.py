"""Look over a network that a user brings: build it, and refuse by name what training here would lose."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.catalogue.imports import find
from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.models.compiled import CompiledLoss, CompiledMetrics, has_loss
from ps_cluster.models.flat import FlatNetwork, as_arguments, layers_of
from ps_cluster.models.saved import last_operation, without_units

_PROBABILITIES = ("Softmax", "Sigmoid")  # operations of TensorFlow
# Methods of a model that decide how it is trained, and are not called here.
_OWN_LOOP = ("train_step", "compute_loss", "compute_metrics", "fit")


def look_over(model: Any, spec: ExampleSpec) -> keras.Model:
    """Return a user's model, built, and without units of a run that has saved it. Check that it can be trained here.

    Raises:
      ValueError: it can't; says why.
    """
    if not isinstance(model, keras.Model):
        returned = "nothing (is there a 'return'?)" if model is None else f"{type(model).__name__}"
        raise ValueError(f"it returns {returned}, not a keras.Model")
    if not model.built or not model.variables:  # a subclassed model makes its variables in the first call
        fields = spec.inputs.items()
        model(as_arguments({name: tf.zeros([1, *field.shape], field.network_dtype) for name, field in fields}))
    model = without_units(model)
    _check_class(model)
    _check_variables(model)
    # Its losses and metrics stay. But a copy of it, or the saved model, would name them, and Keras reads none of a user's.
    model.compiled = False
    graph = FlatNetwork(model).trace(spec)
    outputs = graph.structured_outputs.outputs
    check_outputs(model, spec, outputs)
    _check_scores(model, spec, graph.outputs[0])
    _check_compiled(model, spec, outputs)
    return model


def _check_class(model: keras.Model) -> None:
    for name in _OWN_LOOP:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(f"its class has a {name} of its own, which is not called here: bring a loss by compile()")
    for layer in layers_of(model):
        if layer.compute_dtype == "float16":
            raise ValueError(f"layer '{layer.name}' computes in float16, which needs loss scaling: take bfloat16")
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise ValueError(f"layer '{layer.name}' has synchronized=True, which workers here don't do: leave it out")
        if isinstance(layer, keras.layers.BatchNormalization) and layer.renorm:
            raise ValueError(f"layer '{layer.name}' has renorm=True, whose statistics can't be shared: leave it out")
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


def _check_scores(model: keras.Model, spec: ExampleSpec, scores: tf.Tensor) -> None:
    """Raise ValueError where the loss or the metric takes scores and would be given probabilities.

    Args:
      scores: the first output in the graph of a step.
    """
    objective, last = OBJECTIVES[spec.objective], last_operation(scores)
    if last.type not in _PROBABILITIES or not objective.has_accuracy:
        return
    kind, where = last.type.lower(), last.name.rpartition("/")[0]
    instead = "or compile() it with a loss that takes probabilities"
    if not objective.takes_probabilities:
        instead = "and let a loss of its own take scores (from_logits=True)"
    elif has_loss(model):
        return
    raise ValueError(
        f"'{where}' returns probabilities ({kind}), where scores are expected: leave {kind} out, {instead}"
    )


def _check_compiled(model: keras.Model, spec: ExampleSpec, outputs: Any) -> None:
    """Raise ValueError for a loss or metric of compile() that fails on a batch of zeros."""
    size = spec.outputs + 2  # of no other length, so that none is broadcast over another
    judge = find(OBJECTIVES[spec.objective].judge)(spec)
    targets = judge.targets(tf.zeros([size, *spec.target.shape], spec.target.dtype))
    zeros = keras.tree.map_structure(lambda output: tf.zeros([size, *output.shape[1:]]), outputs)
    if has_loss(model):
        weights = None if spec.weight is None else tf.ones([size])
        CompiledLoss(model, spec.outputs).try_on(judge.scaled(targets), zeros, weights)
    CompiledMetrics(model, spec.outputs).try_on(targets, judge.final(zeros))


def check_outputs(model: keras.Model, spec: ExampleSpec, outputs: Any) -> None:
    """Raise ValueError if the outputs are not what the examples ask for, or are several without a loss for each."""
    flat = keras.tree.flatten(outputs)
    shapes = [tuple(output.shape) for output in flat]
    if not shapes or set(shapes) != {(None, spec.outputs)}:
        raise ValueError(
            f"it returns {' and '.join(map(_numbers, shapes)) or 'nothing'} for each example, and the data set asks for "
            f"{_numbers((None, spec.outputs))} ({OBJECTIVES[spec.objective].task(spec.outputs)}): end it with "
            f"Dense({spec.outputs})"
        )
    if len(flat) > 1 and not has_loss(model):
        raise ValueError(f"it returns {len(flat)} outputs: compile() it with a loss for each, and loss_weights")


def _numbers(shape: tuple[int | None, ...]) -> str:
    """Return what an output of this shape, with the batch as its first axis, has for an example, in words."""
    if len(shape) != 2:
        return f"numbers of shape {list(shape[1:])}"
    return f"{shape[1]} number{'s' * (shape[1] != 1)}"
