"""The optimizer of a user's compile() as settings, its loss and metrics as functions of targets and outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.modes import RULES
from ps_cluster.config.networks import COMPILED
from ps_cluster.private_names import (
    compiled_loss_of,
    compiled_metrics_of,
    layers_of,
    losses_of,
    metrics_of,
    own_weights_of,
    wrapped_by,
)

# Keras's base classes, which say nothing about the targets of a class that a user derives from them.
_BASES = (keras.losses.Loss, keras.metrics.Metric, keras.metrics.Mean, keras.metrics.Sum)


def has_loss(model: keras.Model) -> bool:
    """Return whether a model was compiled with a loss."""
    return compiled_loss_of(model) is not None


def notes(model: keras.Model, config: RunConfig) -> Iterator[str]:
    """Yield lines that say which of a model's compile(), or of the settings, is not used."""
    wanted, found = config.model.precision, {one.compute_dtype for one in layers_of(model) if own_weights_of(one)}
    if wanted not in found:
        yield (
            f"model.name: model.precision {wanted} is not used: its layers have policies of their own, and compute in "
            f"{' and '.join(sorted(found))}"
        )
    smoothing = config.training.label_smoothing
    if has_loss(model) and smoothing:
        yield f"model.name: compile() has a loss, so training.label_smoothing {smoothing:g} is not used"


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


class CompiledLoss:
    """The weighted sum of the losses that a model was compiled with, one for each output, against one target.

    Keras resolves them: names, lists, dictionaries, `loss_weights`. Its own sum is not used: it also writes a metric for
    each output into variables of the process that built the graph.
    """

    def __init__(self, model: keras.Model, outputs: int):
        """Keep the losses. `outputs`: numbers of an example's target, to make a row of a label."""
        self._compiled = compiled_loss_of(model)
        self._outputs = outputs
        self._graph = tf.function(self._sum, autograph=False)

    def __call__(self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None) -> tf.Tensor:
        """Return the loss of a batch, float32 []."""
        given = (targets, outputs, weights)
        # Outside of any strategy: within one, Keras divides a loss by the number of replicas.
        with tf.init_scope():
            self._resolve(targets, outputs)
            graph = self._graph.get_concrete_function(*keras.tree.map_structure(_spec_of, given))
        if any(captured.dtype == tf.resource for captured in graph.captured_inputs):
            raise ValueError("its loss reads a variable, which workers don't have: make it a constant")
        return graph(*given)

    def mean(self, targets: tf.Tensor, outputs: Any) -> tf.Tensor:
        """Return the loss of a batch as a mean over its examples, float32 []; so a loss that is a sum is divided."""
        with tf.init_scope():
            self._resolve(targets, outputs)
        size = tf.cast(tf.shape(targets)[0], tf.float32)
        parts = self._losses(targets, outputs, None)
        return tf.add_n([value / size if loss.reduction == "sum" else value for loss, value in parts])

    def try_on(self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None) -> None:
        """Compute the loss of a batch. Raises ValueError if that fails, or if nothing could be learned from it."""
        try:
            with tf.GradientTape() as tape:
                tape.watch(keras.tree.flatten(outputs))
                self._resolve(targets, outputs)
                loss = self._sum(targets, outputs, weights)
            gradients = tape.gradient(loss, keras.tree.flatten(outputs))
            self(targets, outputs, weights)
        except Exception as error:
            raise ValueError(f"the loss of its compile() fails: {_told(error)}") from error
        if loss.shape.rank:
            raise ValueError(f"the loss of its compile() is of shape {list(loss.shape)}, not one number: reduce it")
        if all(gradient is None for gradient in gradients):
            raise ValueError("the loss of its compile() has no gradient: nothing can be learned from it")

    def _sum(self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None) -> tf.Tensor:
        return tf.add_n([loss for _, loss in self._losses(targets, outputs, weights)])

    def _losses(
        self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None
    ) -> Iterator[tuple[keras.Loss, tf.Tensor]]:
        """Yield each loss and its value, weighted."""
        for one in losses_of(self._compiled):
            output = reduce(getitem, one.path, outputs)
            value = one.loss(_target_for(one.loss, targets, self._outputs), output, weights)
            yield one.loss, tf.cast(value if one.loss_weights is None else value * one.loss_weights, tf.float32)

    def _resolve(self, targets: tf.Tensor, outputs: Any) -> None:
        """Let Keras find the loss of each output, by examples."""
        example, for_each = keras.tree.map_structure(_zeros_like, (outputs, _each(outputs, targets)))
        if not self._compiled.built:
            self._compiled.build(for_each, example)


class CompiledMetrics:
    """The metrics that a model was compiled with, over examples that come in batches. Without any it does nothing."""

    def __init__(self, model: keras.Model, outputs: int):
        """Keep the metrics. `outputs`: numbers of an example's target, to make a row of a label."""
        self._metrics = compiled_metrics_of(model)
        self._outputs = outputs

    def update(self, targets: tf.Tensor, outputs: Any) -> None:
        """Take in a batch. In a graph, its variables are made outside of it."""
        if self._metrics is None:
            return
        with tf.init_scope():
            if not self._metrics.built:
                example, for_each = keras.tree.map_structure(_zeros_like, (outputs, _each(outputs, targets)))
                self._metrics.build(for_each, example)
                self._update(_zeros_like(targets), example)
                self._metrics.reset_state()
        self._update(targets, outputs)

    def try_on(self, targets: tf.Tensor, outputs: Any) -> None:
        """Take in a batch, and forget it. Raises ValueError for a metric that fails, or whose result is no number."""
        if self._metrics is None:
            return
        try:
            self.update(targets, outputs)
            found = self._metrics.result()
        except Exception as error:
            raise ValueError(f"the metrics of its compile() fail: {_told(error)}") from error
        for name, value in found.items():
            if isinstance(value, dict) or tf.convert_to_tensor(value).shape.rank:
                what = "a dictionary" if isinstance(value, dict) else f"of shape {list(value.shape)}"
                raise ValueError(
                    f"the result of metric '{name}' of its compile() is {what}, not one number: leave it out"
                )
        self._metrics.reset_state()

    def _update(self, targets: tf.Tensor, outputs: Any) -> None:
        for metric, output in metrics_of(self._metrics, outputs):
            try:
                metric.update_state(_target_for(metric, targets, self._outputs), output)
            except Exception as error:
                raise ValueError(f"metric '{metric.name}': {_told(error)}") from error

    def taken(self) -> dict[str, float]:
        """Return name → value of all metrics that are finite numbers, and begin anew."""
        if self._metrics is None or not self._metrics.built:
            return {}
        values = {name: float(value) for name, value in self._metrics.result().items()}
        self._metrics.reset_state()
        return {name: value for name, value in values.items() if math.isfinite(value)}


def _target_for(judging: keras.Loss | keras.Metric, targets: tf.Tensor, outputs: int) -> tf.Tensor:
    """Return targets as a loss or a metric takes them: a row for each label where it compares targets with outputs."""
    is_label = targets.dtype.is_integer and targets.shape.rank == 1
    return tf.one_hot(targets, outputs) if is_label and _takes_rows(judging) else targets


def _takes_rows(judging: keras.Loss | keras.Metric) -> bool:
    """Return whether it is of Keras and compares targets with outputs, place by place. Users' own take labels."""
    if hasattr(judging, "sparse_y_true"):  # intersection over union
        return not judging.sparse_y_true
    function = wrapped_by(judging)
    if isinstance(function, keras.Loss):  # as a metric
        return _takes_rows(function)
    found = function or next(kind for kind in type(judging).__mro__ if _is_of_keras(kind))
    return _is_of_keras(found) and found not in _BASES and not found.__name__.lower().startswith("sparse")


def _is_of_keras(found: Any) -> bool:
    return getattr(found, "__module__", "").startswith("keras.")


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _spec_of(tensor: tf.Tensor | None) -> tf.TensorSpec | None:
    return None if tensor is None else tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _zeros_like(tensor: tf.Tensor) -> tf.Tensor:
    return tf.zeros([1, *tensor.shape[1:]], tensor.dtype)


def _each(outputs: Any, targets: tf.Tensor) -> Any:
    """Return the targets in the place of each output."""
    return keras.tree.map_structure(lambda _: targets, outputs)
