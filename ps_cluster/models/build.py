"""Build the network that a configuration chooses, with its initial weights."""

from __future__ import annotations

import os
import re
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig, user_code
from ps_cluster.config.networks import NETWORKS, Network, NetworkSettings, SavedNetwork, check_examples, unbuildable
from ps_cluster.config.objectives import OBJECTIVES, ExampleSpec
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.recipe import COMPILED
from ps_cluster.config.sections import listed
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.values import one_line
from ps_cluster.models.ends import (
    OWN_UNITS,
    PROBABILITIES,
    UNITS,
    NetworkEnd,
    ends_of,
    followed_by,
    is_marked,
    last_activation,
    mark,
)
from ps_cluster.models.failures import NOT_THE_USERS
from ps_cluster.models.flat import FlatNetwork, as_arguments
from ps_cluster.models.judges import CompiledLoss, CompiledMetrics, has_loss, judge_of, zero_targets
from ps_cluster.private_names import besides_config, copy_compiled, layers_of, made_by, own_weights_of

EXAMPLES = 2000  # most examples that initial weights are computed from
_BOLD = re.compile("\x1b\\[1m(.*?)\x1b\\[0m", re.DOTALL)
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def build(
    settings: NetworkSettings, spec: ExampleSpec, *, seed: int, examples: Mapping[str, np.ndarray] | None = None
) -> keras.Model:
    """Return a network with its initial weights, which depend only on `seed` and the examples.

    Args:
      settings: precision "float32", or "bfloat16" to compute in bfloat16; variables stay float32.
      spec: what the network is given, and what it shall return.
      examples: name of a field → raw training examples [N, ...], of which the first `EXAMPLES` may be used; None if
        the weights are loaded next.
    Raises:
      UserError: the network can't be built for such examples.
    """
    network = NETWORKS[settings.name]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[settings.precision])
    try:
        keras.utils.set_random_seed(seed)
        model = _built(network, settings, spec)
    finally:
        keras.config.set_dtype_policy(before)
    first = None if examples is None else {name: values[:EXAMPLES] for name, values in examples.items()}
    network.initialise(model, spec, first)
    return model


def _built(network: Network, settings: NetworkSettings, spec: ExampleSpec) -> keras.Model:
    own = settings.name in NETWORKS.own
    check_examples(settings, spec)
    try:
        model = network.build(spec, settings)
        if own:
            check_outputs(model, spec, model.outputs)
        else:
            model = look_over(model, spec)
    except UserError:
        raise
    except Exception as error:
        if own and not isinstance(error, ValueError):  # as Keras says what does not fit
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        bold = _BOLD.search(str(error))  # what Keras writes so, without the layer and its arguments around it
        reason = one_line(_place(error) + kind + (bold[1] if bold else str(error)), 500)
        raise unbuildable(settings, spec, f"{reason}{_of_relative_path(error)}") from error
    return model


def _of_relative_path(error: Exception) -> str:
    """Return advice for a file that was not found by its relative path; "" for other errors."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(name, str) or os.path.isabs(name):
        return ""
    return (
        ": the tasks of a run work in another folder, so a relative path leads elsewhere: give the whole path, e.g. "
        f"Path(__file__).parent / '{one_line(name, 100)}', or os.path.abspath() outside of the function"
    )


def _place(error: BaseException | None) -> str:
    """Return the line of the user's code that an error came from, as "my.py:12: "; nothing where it came from elsewhere."""
    place = ""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            if not frame.filename.startswith(NOT_THE_USERS):
                place = f"{Path(frame.filename).name}:{frame.lineno}: "
        error = error.__cause__
    return place


# Look over a network that a user brings: build it, and refuse by name what training here would lose.

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
        if getattr(layer, "stateful", False):
            raise ValueError(f"layer '{layer.name}' has stateful=True, whose state workers don't share: leave it out")
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
    last = last_activation(scores)
    if is_marked(model, PROBABILITIES) and not has_loss(model):
        raise ValueError(
            "it returns probabilities, as it was saved: compile() it with the loss that it was trained with"
        )
    if last is None or not OBJECTIVES[spec.objective].has_accuracy:
        return
    kind, where = last.type.lower(), last.name.rpartition("/")[0]
    if kind == "softmax" and scores.shape[-1] == 1:
        raise ValueError(f"'{where}' is a softmax of one number, which is always 1: take sigmoid, or Dense(2)")
    if not has_loss(model):
        raise ValueError(
            f"'{where}' returns probabilities ({kind}), where scores are expected: leave {kind} out, or compile() it with "
            "a loss that takes probabilities"
        )


def _check_compiled(model: keras.Model, spec: ExampleSpec, outputs: Any) -> None:
    """Raise ValueError for a loss or metric of compile() that fails on a batch of zeros."""
    size = spec.outputs + 2  # of no other length, so that none is broadcast over another
    judge = judge_of(spec, model=model)
    targets = judge.targets(zero_targets(spec, size))
    zeros = keras.tree.map_structure(lambda output: tf.zeros([size, *output.shape[1:]]), outputs)
    if has_loss(model):
        weights = None if spec.weight is None else tf.ones([size])
        CompiledLoss(model, spec.outputs).try_on(judge.scaled(targets), zeros, weights)
    CompiledMetrics(model, spec.outputs).try_on(targets, judge.final(zeros))


def check_outputs(model: keras.Model, spec: ExampleSpec, outputs: Any) -> None:
    """Raise ValueError if the outputs are not what the examples ask for, or are several without a loss for each."""
    flat = keras.tree.flatten(outputs)
    shapes = [tuple(output.shape) for output in flat]
    fitting = [(None, count) for count in OBJECTIVES[spec.objective].numbers(spec)]
    if len(set(shapes)) != 1 or shapes[0] not in fitting:
        raise ValueError(
            f"it returns {' and '.join(map(_numbers, shapes)) or 'nothing'} for each example, and the data set asks for "
            f"{_numbers((None, spec.outputs))} ({OBJECTIVES[spec.objective].task(spec.outputs)}): "
            f"{_advice(spec, shapes)}"
        )
    if len(flat) > 1 and not has_loss(model):
        raise ValueError(f"it returns {len(flat)} outputs: compile() it with a loss for each, and loss_weights")


def _advice(spec: ExampleSpec, shapes: Sequence[tuple[int | None, ...]]) -> str:
    """Return what to do about outputs of these shapes, which the data set does not ask for."""
    end = "end it with " + " or ".join(f"Dense({count})" for count in OBJECTIVES[spec.objective].numbers(spec))
    if OBJECTIVES[spec.objective].has_units and spec.outputs == 1 and any(shape[-1:] > (1,) for shape in shapes):
        # Targets are floats. Those of Keras's losses may be classes all the same.
        return f"if the targets are classes, set data.objective=classification; if they are numbers to predict, {end}"
    return end


def _numbers(shape: tuple[int | None, ...]) -> str:
    """Return what an output of this shape, with the batch as its first axis, has for an example, in words."""
    if len(shape) != 2:
        return f"numbers of shape {list(shape[1:])}"
    return f"{shape[1]} number{'s' * (shape[1] != 1)}"


# Load a model that Keras has saved: to go on from its weights, or to predict with what a run has left.


def load_saved(file: Path, spec: ExampleSpec) -> keras.Model:
    """Return the model of a .keras file.

    Keras's safe mode stays on. Layers of a user's own are looked up in the files of code that the user has named.

    A regression that no run has saved returns the target's units, as Keras's own do.

    Raises:
      ValueError, TypeError: it holds no model, or one with a layer or loss that is in none of those files.
    """
    model = load_finished(file, compiled=True)
    says_units = any(map(_is_units, layers_of(model))) or is_marked(model, OWN_UNITS)
    if not OBJECTIVES[spec.objective].has_units or says_units:
        return model
    marked = followed_by(model, mark(OWN_UNITS), spec.inputs)
    copy_compiled(model, to=marked)
    return marked


def without_units(model: keras.Model) -> keras.Model:
    """Return a model without the layer of units at its end, compiled as it was.

    Raises:
      ValueError: it has such a layer elsewhere.
    """
    if any(map(_is_units, layers_of(model))) and type(model).__module__.startswith("keras."):
        inputs, outputs = ends_of(model)
        bare = keras.Model(inputs, keras.tree.map_structure(_before_units, outputs), name=model.name)
        copy_compiled(model, to=bare)
        model = bare
    if any(map(_is_units, layers_of(model))):
        raise ValueError(
            f"the layer '{UNITS}' of a saved regression is within it, where standard deviations are trained: take the "
            "saved model without its last layer (docs/extending.md#your-own-network)"
        )
    return model


def _before_units(output: keras.KerasTensor) -> keras.KerasTensor:
    layer, given = made_by(output)
    return given[0] if _is_units(layer) else output


def _is_units(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Rescaling) and layer.name == UNITS


def load_finished(file: Path, *, compiled: bool = False) -> keras.Model:
    """Return the model of a .keras or .h5 file as it is. Safe mode and errors as in `load_saved`.

    Args:
      compiled: whether its loss and metrics are loaded too.
    Raises:
      UserError: it belongs to another user, and nobody has named it by --code.
    """
    if untrusted.is_foreign(file) and not user_code.is_trusted(file):
        raise UserError(
            f"'{file}' belongs to {untrusted.name_of(file.stat().st_uid)}, and a model may run code: copy it if you trust "
            f"it, or add --code '{file}'"
        )
    custom = user_code.defined_in_trusted()
    return keras.models.load_model(file, custom_objects=custom, compile=compiled, safe_mode=True)


def load_best(file: Path, settings: NetworkSettings, spec: ExampleSpec) -> keras.Model:
    """Return the best model of a run as the evaluator has saved it to `file`.

    Keras can't load a file whose layers it doesn't know: a `Lambda` of Python code, a class that is defined inside a
    function or in a script. Such a network is built again by the code that the user named, and gets the weights of the file.

    Args:
      settings: the section `model` of the run. spec: the form of the examples that the run was trained on.
    Raises:
      UserError: nobody has named the code that builds the network.
      Exception: the file is damaged, or is not of this network.
    """
    try:
        return load_finished(file)
    except (TypeError, ValueError, NotImplementedError):
        if not is_built_by_code(settings.name):
            raise
    model = finished(settings, spec)
    model.load_weights(file)
    return model


def is_built_by_code(name: str) -> bool:
    """Return whether a network is built by a user's code: it is neither the package's own nor a saved model."""
    return name not in NETWORKS.own and not isinstance(NETWORKS[name], SavedNetwork)


def finished(settings: NetworkSettings, spec: ExampleSpec) -> keras.Model:
    """Return a network as the evaluator saves it, without the weights of a training."""
    model = build(settings, spec, seed=0)
    return judge_of(spec, model=model).finished(model)


def try_to_load(model: keras.Model, settings: NetworkSettings, spec: ExampleSpec) -> str | None:
    """Save a network and load it again, as the evaluator and `predict` do hours later.

    Args:
      model: what `build` has returned.
    Returns:
      Why Keras alone can't load the file, on one line; None if it can.
    Raises:
      ValueError: it can't be saved, or what was saved can't be loaded.
    """
    saved = judge_of(spec, model=model).finished(model)
    with tempfile.TemporaryDirectory(prefix="ps-cluster-saved-") as folder:
        file = Path(folder, "model.keras")
        try:
            saved.save(file)
            alone = _why_not_alone(saved, file)
            # This process may know a class that the next one does not know, so the other way has to work too.
            loaded = finished(settings, spec) if alone and is_built_by_code(settings.name) else load_finished(file)
            loaded.load_weights(file)
        except Exception as error:
            raise ValueError(
                f"the best model could not be loaded after the training: {_first_sentence(error)}"
            ) from error
    shapes = [[variable.shape for variable in one.variables] for one in (saved, loaded)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "the best model could not be loaded after the training: its layers differ each time it is built"
        )
    return alone


def _why_not_alone(saved: keras.Model, file: Path) -> str | None:
    """Return why Keras can't load the file without any code of the user, on one line; None if it can."""
    kinds = map(type, layers_of(saved))
    if own := dict.fromkeys(kind.__name__ for kind in kinds if not kind.__module__.startswith("keras.")):
        return f"Keras does not know {listed(list(own))}"
    try:
        keras.models.load_model(file, compile=False, safe_mode=True)
    except Exception as error:
        return _first_sentence(error)
    return None


def _first_sentence(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}".partition(". ")[0], 300)


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
    end = NetworkEnd(model, spec)
    is_done, layers = end.gives_probabilities(), keras.layers
    is_one_of_two, objective = end.is_one_of_two, OBJECTIVES[spec.objective]
    activation = "sigmoid" if is_one_of_two else objective.activation
    last = layers.Activation("linear" if is_done else activation, dtype="float32", name="predictions")
    model = followed_by(model, last, spec.inputs)
    prediction = keras.tree.flatten(model.output)[0]
    if is_done and end.is_estimate:
        prediction = layers.ReLU(max_value=1.0, dtype="float32", name="within_0_and_1")(prediction)
    if is_one_of_two:
        of_first = layers.Rescaling(-1.0, 1.0, dtype="float32", name="of_first_class")(prediction)
        prediction = layers.Concatenate(dtype="float32", name="of_both_classes")([of_first, prediction])
    return keras.Model(model.input, prediction, name=model.name)


# Say of a model's compile() what is used, and as which settings.


def notes(model: keras.Model, config: RunConfig) -> Iterator[str]:
    """Yield lines that say which of a model's compile(), or of the settings, is not used."""
    wanted, found = config.model.precision, {one.compute_dtype for one in layers_of(model) if own_weights_of(one)}
    if wanted not in found:
        yield (
            f"model.name: model.precision {wanted} is not used: its layers have policies of their own, and compute in "
            f"{' and '.join(sorted(found))}"
        )
    made = getattr(getattr(model, "optimizer", None), "iterations", None)
    if made is not None and (updates := int(made)):
        yield (
            f"model.name: the optimizer of compile() has made {updates:,} update{'s' * (updates > 1)}: what it keeps of them "
            "(moments) is not used, and begins anew"
        )
    smoothing = config.training.label_smoothing
    if has_loss(model) and smoothing:
        yield f"model.name: compile() has a loss, so training.label_smoothing {smoothing:g} is not used"


def check_sizes(model: keras.Model, config: RunConfig) -> None:
    """Raise UserError where images shall be smaller at first, and the network takes those of one size alone.

    Only a network's graph says so. A class of a user's own has none, and its `call` fails in the first step.
    """
    if not config.schedule.image_scales:
        return
    shapes = [given.shape[1:] for given in keras.tree.flatten(getattr(model, "inputs", None) or ())]
    if fixed := [shape for shape in shapes if len(shape) == 3 and None not in shape]:
        raise UserError(
            f"schedule.image_scales: model.name '{config.model.name}' takes images of {'x'.join(map(str, fixed[0]))} alone: "
            "set it to [], or build the network with keras.Input((None, None, channels))"
        )


def optimizer_settings(model: keras.Model) -> dict[str, Any]:
    """Return the section `optimizer` that does what the optimizer of a model's compile() does; {} without a compile().

    Raises:
      ValueError: it does something that no rule here does; says what to set.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return {}
    kind, values = type(optimizer), optimizer.get_config()
    if kind not in _RULES:
        raise ValueError(_no_rule(kind.__name__, "is not known"))
    if not isinstance(values["learning_rate"], int | float):
        raise ValueError(_no_rule(kind.__name__, "has a learning rate schedule"))
    for name, usual in _WITHOUT.items():
        if values.get(name, usual) != usual:
            raise ValueError(_no_rule(kind.__name__, f"has {name}={values[name]}"))
    decays = bool(values["weight_decay"])
    if others := [name for name in besides_config(optimizer) if decays or not name.startswith(_OF_DECAY)]:
        why = "exclude_from_weight_decay" if others[0].startswith(_OF_DECAY) else others[0]
        raise ValueError(_no_rule(kind.__name__, f"has {why}, which was set after it was made"))
    rule, names = _RULES[kind]
    if rule == "momentum":
        rule = "nesterov" if values["nesterov"] and values["momentum"] else "momentum" if values["momentum"] else "sgd"
    own = {} if rule == "sgd" else {ours: values[name] for ours, name in names.items()}
    clipping = {"clip_norm": "clipnorm", "global_clip_norm": "global_clipnorm", "clip_value": "clipvalue"}
    return own | {
        "rule": rule,
        "learning_rate": float(str(np.float32(values["learning_rate"]))),  # as it was written, before it became float32
        "weight_decay": float(values["weight_decay"] or 0.0),
        **{ours: values[name] for ours, name in clipping.items()},
    }


# Keras's class → the rule that does the same ("momentum": one of sgd, momentum and nesterov), its setting → Keras's.
_ADAM = {"momentum": "beta_1", "beta_2": "beta_2", "epsilon": "epsilon"}
_RULES: dict[type[keras.Optimizer], tuple[str, dict[str, str]]] = {
    keras.optimizers.SGD: ("momentum", {"momentum": "momentum"}),
    keras.optimizers.Adam: ("adam", _ADAM),
    keras.optimizers.AdamW: ("adam", _ADAM),
    keras.optimizers.RMSprop: ("rmsprop", {"momentum": "momentum", "rho": "rho", "epsilon": "epsilon"}),
}
_OF_DECAY = "_exclude_from_weight_decay"  # without decay, nothing is excluded from it
# Settings of Keras that no rule here has → the value with which they do nothing.
_WITHOUT = {
    "amsgrad": False, "centered": False, "use_ema": False, "gradient_accumulation_steps": None, "loss_scale_factor": None,
}  # fmt: skip


def _no_rule(name: str, why: str) -> str:
    rules = ", ".join(rule for rule in RULES.names if rule != COMPILED)
    return (
        f"the optimizer of its compile() ({name}) {why}, and no rule here does the same: set optimizer.rule ({rules}) and "
        "optimizer.learning_rate"
    )
