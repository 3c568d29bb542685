"""The loss and the metrics that a user's model was compiled with, as functions of targets and outputs."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from ps_cluster.config import RunConfig

_ONE_HOT = (  # losses that take a row for each label, where a data set has whole numbers
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
    keras.losses.categorical_hinge,
)


def has_loss(model: keras.Model) -> bool:
    """Return whether a model was compiled with a loss."""
    return model._compile_loss is not None


def note(model: keras.Model, config: RunConfig) -> str | None:
    """Return the line that says which settings of a model's compile() are not used; None if it was not compiled."""
    if getattr(model, "optimizer", None) is None:
        return None
    used, unused = config.optimizer, type(model.optimizer).__name__
    line = (
        f"model.name: the optimizer of compile() ({unused}) is not used, but {used.rule} with learning rate "
        f"{used.learning_rate:g}: set optimizer.rule, optimizer.learning_rate and schedule.kind"
    )
    smoothing = config.training.label_smoothing
    if has_loss(model) and smoothing:
        line += f"; its loss is, so training.label_smoothing {smoothing:g} is not"
    return line


class CompiledLoss:
    """The weighted sum of the losses that a model was compiled with, one for each output, against one target.

    Keras resolves them: names, lists, dictionaries, `loss_weights`. Its own sum is not used: it also writes a metric for
    each output into variables of the process that built the graph.
    """

    def __init__(self, model: keras.Model, outputs: int):
        """Keep the losses. `outputs`: numbers of an example's target, to make a row of a label."""
        self._compiled = model._compile_loss
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

    def _sum(self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None) -> tf.Tensor:
        parts = [
            (one.loss(self._target_for(one.loss, targets), _at(outputs, one.path), weights), one.loss_weights)
            for one in self._compiled._flat_losses
        ]
        return tf.add_n([tf.cast(loss if weight is None else loss * weight, tf.float32) for loss, weight in parts])

    def _resolve(self, targets: tf.Tensor, outputs: Any) -> None:
        """Let Keras find the loss of each output, by examples."""
        example, for_each = keras.tree.map_structure(_zeros_like, (outputs, _each(outputs, targets)))
        if not self._compiled.built:
            self._compiled.build(for_each, example)

    def _target_for(self, loss: keras.losses.Loss, targets: tf.Tensor) -> tf.Tensor:
        is_label = targets.dtype.is_integer and targets.shape.rank == 1
        return tf.one_hot(targets, self._outputs) if is_label and getattr(loss, "fn", None) in _ONE_HOT else targets


def _spec_of(tensor: tf.Tensor | None) -> tf.TensorSpec | None:
    return None if tensor is None else tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


class CompiledMetrics:
    """The metrics that a model was compiled with, over examples that come in batches. Without any it does nothing."""

    def __init__(self, model: keras.Model):
        self._metrics = model._compile_metrics

    def update(self, targets: tf.Tensor, outputs: Any) -> None:
        """Take in a batch. In a graph, its variables are made outside of it."""
        if self._metrics is None:
            return
        for_each = _each(outputs, targets)
        with tf.init_scope():
            if not self._metrics.built:
                self._metrics.update_state(*keras.tree.map_structure(_zeros_like, (for_each, outputs)))
                self._metrics.reset_state()
        self._metrics.update_state(for_each, outputs)

    def taken(self) -> dict[str, float]:
        """Return name → value of all metrics that are finite numbers, and begin anew."""
        if self._metrics is None or not self._metrics.built:
            return {}
        values = {name: float(value) for name, value in self._metrics.result().items()}
        self._metrics.reset_state()
        return {name: value for name, value in values.items() if math.isfinite(value)}


def _zeros_like(tensor: tf.Tensor) -> tf.Tensor:
    return tf.zeros([1, *tensor.shape[1:]], tensor.dtype)


def _each(outputs: Any, targets: tf.Tensor) -> Any:
    """Return the targets in the place of each output."""
    return keras.tree.map_structure(lambda _: targets, outputs)


def _at(outputs: Any, path: tuple) -> tf.Tensor:
    for part in path:
        outputs = outputs[part]
    return outputs
