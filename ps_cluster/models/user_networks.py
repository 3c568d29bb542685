"""Build and check a user's network. Refuse a network with a part that this package would ignore, and name the part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.objectives import OBJECTIVES, TARGET, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.models.compiled import CompiledLoss, CompiledMetrics, has_loss
from ps_cluster.models.compiled_heads import head_of, zero_targets
from ps_cluster.models.compiled_optimizer import optimizer_of
from ps_cluster.models.end_graphs import last_activation
from ps_cluster.models.ends import target_names
from ps_cluster.models.flat import FlatNetwork, as_arguments
from ps_cluster.models.marks import PROBABILITIES, is_marked, symbolic_inputs_of, without_units
from ps_cluster.models.pure import Outputs
from ps_cluster.private_names import layers_of, own_weights_of

# Methods of a model that decide how it is trained, and are not called here.
_TRAINING_METHODS = ("train_step", "compute_loss", "compute_metrics", "fit")


def check_network(found: object, spec: ExampleSpec) -> keras.Model:
    """Check that this package can train what a user's code has returned. Return the built model.

    If the model was saved by a run, its last layer `UNITS`, which converts outputs to the target's units, is left out.
    Raises ValueError with the reason if `found` is not a model that can be trained.
    """
    if not isinstance(found, keras.Model):
        returned = "nothing (is there a 'return'?)" if found is None else f"{type(found).__name__}"
        raise ValueError(f"it returns {returned}, not a keras.Model")
    if not found.built or not found.variables:  # a subclassed model makes its variables in the first call
        fields = spec.inputs.items()
        found(as_arguments({name: tf.zeros([1, *field.shape], field.network_dtype) for name, field in fields}))
    model = without_units(found)
    _check_class(model)
    _check_variables(model)
    # The losses and metrics stay. But if `compiled` were True, a copy or a saved model would refer to them, and Keras
    # can't load the losses and metrics that a user has defined.
    model.compiled = False
    graph = FlatNetwork(model).graph(spec)
    if resources := [one for one in graph.captured_inputs if one.dtype == tf.resource]:
        raise ValueError(
            f"it reads tf.Variables or tables of its own ({len(resources)} in all), which workers don't have: create "
            "them with the layer's add_weight, or make them constants"
        )
    outputs = graph.structured_outputs.outputs
    check_outputs(model, spec, outputs)
    flat = keras.tree.flatten(outputs)
    arrays = target_names(model, outputs, spec) if spec.others else [TARGET]
    for array, output in zip(arrays, flat):
        _check_scores(model, spec.targets[array], output)
    _check_compiled(model, spec, outputs)
    return model


def _check_class(model: keras.Model) -> None:
    for name in _TRAINING_METHODS:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(f"its class has a {name} of its own, which is not called here: pass a loss to compile()")
    for layer in layers_of(model):
        if layer.compute_dtype == "float16":
            raise ValueError(f"layer '{layer.name}' computes in float16, which needs loss scaling: use bfloat16")
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise ValueError(f"layer '{layer.name}' has synchronized=True, which is not supported here: remove it")
        if getattr(layer, "stateful", False):
            raise ValueError(
                f"layer '{layer.name}' has stateful=True, but workers can't share its state: remove stateful=True"
            )
        if isinstance(layer, keras.layers.BatchNormalization) and layer.renorm:
            raise ValueError(
                f"layer '{layer.name}' has renorm=True, but workers can't share its statistics: remove renorm=True"
            )
    keras.saving.serialize_keras_object(model)  # raises if the best model could not be saved later


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
                f"variable '{variable.path}' is {variable.dtype}: only float32 variables are trained; a mixed "
                "precision policy keeps variables in float32"
            )


def _check_scores(model: keras.Model, spec: ExampleSpec, scores: tf.Tensor) -> None:
    """Raise ValueError if an output consists of probabilities where scores are expected, or is a softmax of one number.

    `scores`: the output for the target, in the graph of a step.
    """
    last = last_activation(scores)
    if is_marked(model, PROBABILITIES) and not has_loss(model):
        raise ValueError(
            "it returns the probabilities of a saved model, but has no loss: compile() it with the loss that the saved "
            "model was trained with"
        )
    if last is None or not OBJECTIVES[spec.objective].has_accuracy:
        return
    kind, where = last.type.lower(), last.name.rpartition("/")[0]
    if kind == "softmax" and scores.shape[-1] == 1:
        raise ValueError(f"'{where}' is a softmax of one number, which is always 1: use sigmoid, or Dense(2)")
    if not has_loss(model):
        raise ValueError(
            f"'{where}' returns probabilities ({kind}), where scores are expected: leave {kind} out, or compile() it "
            "with a loss that takes probabilities"
        )


def _check_compiled(model: keras.Model, spec: ExampleSpec, outputs: Outputs) -> None:
    """Raise ValueError for a loss or metric of compile() that fails on a batch of zeros."""
    # The batch size differs from the length of every other axis, so that nothing is broadcast by mistake.
    size = max(one.outputs for one in spec.targets.values()) + 2
    head = head_of(spec, model=model)
    targets = head.targets(zero_targets(spec, size))
    zeros = keras.tree.map_structure(lambda output: tf.zeros([size, *output.shape[1:]]), outputs)
    if has_loss(model):
        weights = None if spec.weight is None else tf.ones([size])
        CompiledLoss(model).check_on(head.scaled(targets), zeros, weights)
    CompiledMetrics(model).check_on(targets, head.final(zeros))


def check_outputs(model: keras.Model, spec: ExampleSpec, outputs: Outputs) -> None:
    """Raise ValueError if the outputs do not fit the examples, or if there are several outputs but no loss."""
    flat = keras.tree.flatten(outputs)
    if spec.others:
        _check_each_output(model, spec, outputs)
        return
    shapes = [tuple(output.shape) for output in flat]
    fitting = [(None, count) for count in OBJECTIVES[spec.objective].output_counts(spec)]
    if len(set(shapes)) != 1 or shapes[0] not in fitting:
        returned = " and ".join(map(_numbers_in_words, shapes)) or "nothing"
        raise ValueError(
            f"it returns {returned} for each example, and the data set asks for "
            f"{_numbers_in_words((None, spec.outputs))} ({OBJECTIVES[spec.objective].described(spec.outputs)}): "
            f"{_advice(spec, shapes)}"
        )
    if len(flat) > 1 and not has_loss(model):
        raise ValueError(f"it returns {len(flat)} outputs: compile() it with a loss for each output")


def _check_each_output(model: keras.Model, spec: ExampleSpec, outputs: Outputs) -> None:
    """Raise ValueError if an output does not fit its target, or has no loss."""
    if not has_loss(model):
        raise ValueError(f"the data has {len(spec.targets)} targets: compile() it with a loss for each output")
    for array, output in zip(target_names(model, outputs, spec), keras.tree.flatten(outputs), strict=True):
        one = spec.targets[array]
        try:
            check_outputs(model, one, output)
        except ValueError as error:
            raise ValueError(f"output '{one.output}': {error}") from error


def _advice(spec: ExampleSpec, shapes: Sequence[tuple[int | None, ...]]) -> str:
    """Return advice on how to change a network whose outputs have the wrong `shapes` for the data set."""
    end = "end it with " + " or ".join(f"Dense({count})" for count in OBJECTIVES[spec.objective].output_counts(spec))
    if OBJECTIVES[spec.objective].has_units and spec.outputs == 1 and any(shape[-1:] > (1,) for shape in shapes):
        # Targets are floats. With Keras's losses, floats may be classes too.
        return f"if the targets are classes, set data.objective=classification; if they are numbers to predict, {end}"
    return end


def _numbers_in_words(shape: tuple[int | None, ...]) -> str:
    """Describe in words what an output contains for one example. `shape`: [batch, ...], the shape of the output."""
    if len(shape) != 2:
        return f"numbers of shape {list(shape[1:])}"
    return f"{shape[1]} number{'s' * (shape[1] != 1)}"


def unused_parts(model: keras.Model, config: RunConfig) -> Iterator[str]:
    """Yield a line for each setting, and for each part of the model's compile(), that the training does not use."""
    wanted, found = config.model.precision, {one.compute_dtype for one in layers_of(model) if own_weights_of(one)}
    if wanted not in found:
        yield (
            f"model.name: model.precision {wanted} is not used: the model's layers have dtype policies of their own, "
            f"and compute in {' and '.join(sorted(found))}"
        )
    optimizer = optimizer_of(model)
    if optimizer is not None and (updates := int(optimizer.iterations)):
        yield (
            f"model.name: the optimizer of compile() has made {updates:,} update{'s' * (updates > 1)}: its moments are "
            "not used, and start from zero"
        )
    smoothing = config.training.label_smoothing
    if has_loss(model) and smoothing:
        yield f"model.name: compile() has a loss, so training.label_smoothing {smoothing:g} is not used"


def check_image_sizes(model: keras.Model, config: RunConfig) -> None:
    """Raise UserError if training starts with smaller images, but the network takes images of only one size.

    A subclassed model has no symbolic inputs, so it can't be checked. If it takes only one size, it fails in
    the first step.
    """
    if not config.schedule.image_scales:
        return
    shapes = [given.shape[1:] for given in symbolic_inputs_of(model)]
    if fixed := [shape for shape in shapes if len(shape) == 3 and None not in shape]:
        raise UserError(
            f"schedule.image_scales: model.name '{config.model.name}' only takes images of "
            f"{'x'.join(map(str, fixed[0]))}: set this to [], or build the network with "
            "keras.Input((None, None, channels))"
        )
