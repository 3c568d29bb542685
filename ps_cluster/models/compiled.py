"""The losses and metrics of a model's compile(), as functions of targets and outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import getitem
from typing import NamedTuple, TypeAlias

import keras
import tensorflow as tf

from ps_cluster.models.keras_losses import metric_takes_probabilities, target_for
from ps_cluster.models.pure import Outputs
from ps_cluster.private_names import (
    CompiledPart,
    OutputLoss,
    compiled_loss_of,
    compiled_metrics_of,
    losses_of,
    metrics_of,
    notes_of,
    with_notes,
)

Targets: TypeAlias = tf.Tensor | tuple[tf.Tensor, ...]
"""Targets [B, ...] that all outputs share, or a tuple with those of each output, in order of `keras.tree.flatten`."""


class MicroBatchFactors(NamedTuple):
    """The factors by which the losses of one micro-batch are multiplied.

    A batch is divided into micro-batches of equal size. There is one factor for losses that are sums over the examples,
    and one for losses that are means weighted by `sample_weight`. With these factors, the mean of the micro-batches'
    losses is the loss of the batch.
    """

    of_sum: tf.Tensor  # float32 [], the number of micro-batches
    of_weighted_mean: tf.Tensor  # float32 [], `of_sum` times this micro-batch's share of the batch's total weight


def has_loss(model: keras.Model) -> bool:
    """Return whether a model was compiled with a loss."""
    return compiled_loss_of(model) is not None


class CompiledLoss:
    """The weighted sum of the losses that a model was compiled with. Each loss belongs to one output.

    Keras finds out which loss belongs to which output, and reads `loss_weights`. The sum is not computed by Keras,
    because Keras would also write a metric for each output into variables of the process that built the graph.
    """

    def __init__(self, model: keras.Model):
        """Take the losses of a model. Raises ValueError if it was compiled without a loss."""
        compiled = compiled_loss_of(model)
        if compiled is None:
            raise ValueError("it has no loss: compile() it with one")
        self._compiled = compiled
        self._graph = tf.function(self._sum_of_step, autograph=False)

    def by_output(self, targets: Targets, outputs: Outputs) -> dict[int, keras.Loss]:
        """Return the loss of each output that has one, by the index of the output.

        Raises ValueError if Keras can't match losses and outputs. `targets`, `outputs`: tensors with the shapes and
        dtypes of the targets and of the network's outputs. Their values are not used.
        """
        try:
            with tf.init_scope():
                _build(self._compiled, targets, outputs)
        except Exception as error:
            raise ValueError(f"the loss of its compile() fails: {_as_text(error)}") from error
        return {_place_of(one, outputs): one.loss for one in losses_of(self._compiled)}

    def __call__(
        self, targets: Targets, outputs: Outputs, weights: tf.Tensor | None, part: MicroBatchFactors | None = None
    ) -> tf.Tensor:
        """Return the loss of a batch, float32 [].

        `weights`: the weight of each example, [B]; None if all examples count equally. `part`: the factors by which the
        losses are multiplied if the batch is one of several micro-batches.
        """
        # If Keras has stored the logits of probabilities as an attribute of the tensor, its losses use the logits,
        # because a probability of 0 or 1 has no gradient. A graph loses such attributes, so they are passed to it.
        given = (targets, outputs, weights, [notes_of(output) for output in keras.tree.flatten(outputs)])
        of_part = part and MicroBatchFactors(*map(tf.TensorSpec.from_tensor, part))

        def trace() -> tf.types.experimental.ConcreteFunction:
            _build(self._compiled, targets, outputs)
            return self._graph.get_concrete_function(*keras.tree.map_structure(_spec_of, given), of_part)

        # Within a strategy, Keras divides a loss by the number of replicas. A separate thread is outside of any
        # strategy. `tf.init_scope` would not help: it returns to the strategy's scope around the graph.
        with ThreadPoolExecutor(1) as outside:
            graph = outside.submit(trace).result()
        if any(captured.dtype == tf.resource for captured in graph.captured_inputs):
            raise ValueError("its loss reads a variable, which workers don't have: use a constant instead")
        return graph(*given, part)

    def mean(self, targets: Targets, outputs: Outputs) -> tf.Tensor:
        """Return the mean loss of the B examples of a batch, float32 []. A loss that is a sum is divided by B."""
        with tf.init_scope():
            _build(self._compiled, targets, outputs)
        size = tf.cast(tf.shape(keras.tree.flatten(outputs)[0])[0], tf.float32)
        parts = self._losses(targets, outputs, None)
        return tf.add_n([value / size if loss.reduction == "sum" else value for loss, value in parts])

    def check_on(self, targets: Targets, outputs: Outputs, weights: tf.Tensor | None) -> None:
        """Check the loss on a batch. Raises ValueError if it fails, is not a single number, or has no gradient."""
        try:
            with tf.GradientTape() as tape:
                tape.watch(keras.tree.flatten(outputs))
                _build(self._compiled, targets, outputs)
                loss = self._sum(targets, outputs, weights)
            gradients = tape.gradient(loss, keras.tree.flatten(outputs))
            self(targets, outputs, weights)
        except Exception as error:
            raise ValueError(f"the loss of its compile() fails: {_as_text(error)}") from error
        if loss.shape.rank:
            raise ValueError(
                f"the loss of its compile() is of shape {list(loss.shape)}, not one number: return its mean or sum"
            )
        if all(gradient is None for gradient in gradients):
            raise ValueError("the loss of its compile() has no gradient: nothing can be learned from it")

    def _sum_of_step(
        self,
        targets: Targets,
        outputs: Outputs,
        weights: tf.Tensor | None,
        notes: Sequence[Sequence[tf.Tensor | None]],
        part: MicroBatchFactors | None = None,
    ) -> tf.Tensor:
        noted = [with_notes(output, one) for output, one in zip(keras.tree.flatten(outputs), notes, strict=True)]
        return self._sum(targets, keras.tree.pack_sequence_as(outputs, noted), weights, part)

    def _sum(
        self, targets: Targets, outputs: Outputs, weights: tf.Tensor | None, part: MicroBatchFactors | None = None
    ) -> tf.Tensor:
        losses = self._losses(targets, outputs, weights)
        return tf.add_n(
            [value if part is None else value * _micro_batch_factor(loss, weights, part) for loss, value in losses]
        )

    def _losses(
        self, targets: Targets, outputs: Outputs, weights: tf.Tensor | None
    ) -> Iterator[tuple[keras.Loss, tf.Tensor]]:
        """Yield each loss, and its value multiplied by the loss's weight in compile()."""
        flat_targets, flat_outputs = _of_each(outputs, targets), keras.tree.flatten(outputs)
        for one in losses_of(self._compiled):
            place = _place_of(one, outputs)
            target, output = flat_targets[place], flat_outputs[place]
            value = one.loss(target_for(one.loss, target, output), output, weights)
            yield one.loss, tf.cast(value if one.loss_weights is None else value * one.loss_weights, tf.float32)


def _micro_batch_factor(loss: keras.Loss, weights: tf.Tensor | None, part: MicroBatchFactors) -> tf.Tensor | float:
    if loss.reduction == "sum":
        return part.of_sum
    is_weighted_mean = loss.reduction == "mean_with_sample_weight" and weights is not None
    return part.of_weighted_mean if is_weighted_mean else 1.0


class CompiledMetrics:
    """The metrics that a model was compiled with, accumulated over batches. Without metrics, the methods do nothing."""

    def __init__(self, model: keras.Model):
        """Take the metrics of a model."""
        self._metrics = compiled_metrics_of(model)

    @property
    def metrics(self) -> dict[str, keras.Metric]:
        """The metrics, by the names of their results. Empty until the metrics are built, which `update` does."""
        if self._metrics is None or not self._metrics.built:
            return {}
        return dict(zip(self._metrics.result(), self._metrics.metrics, strict=True))

    def update(self, targets: Targets, outputs: Outputs, probabilities: Outputs) -> None:
        """Update the metrics with a batch. `probabilities`: the outputs as probabilities, in the same structure.

        If a tf.function calls this method, the variables of the metrics are created outside of its graph.
        """
        if self._metrics is None:
            return
        with tf.init_scope():
            if not self._metrics.built:
                _build(self._metrics, targets, outputs)
                zeros = keras.tree.map_structure(_zeros_like, outputs)
                self._update(keras.tree.map_structure(_zeros_like, targets), zeros, zeros)
                self._metrics.reset_state()
        self._update(targets, outputs, probabilities)

    def check_on(self, targets: Targets, outputs: Outputs) -> None:
        """Check the metrics on a batch, and reset them. Raises ValueError unless each one returns a single number."""
        if self._metrics is None:
            return
        try:
            self.update(targets, outputs, outputs)
            found = self._metrics.result()
        except Exception as error:
            raise ValueError(f"the metrics of its compile() fail: {_as_text(error)}") from error
        for name, value in found.items():
            if isinstance(value, dict) or tf.convert_to_tensor(value).shape.rank:
                what = "a dictionary" if isinstance(value, dict) else f"of shape {list(value.shape)}"
                raise ValueError(
                    f"the result of metric '{name}' of its compile() is {what}, not one number: remove this metric"
                )
        self._metrics.reset_state()

    def _update(self, targets: Targets, outputs: Outputs, probabilities: Outputs) -> None:
        of_outputs = _in_place_of(outputs, targets)
        found = zip(*(metrics_of(self._metrics, one) for one in (of_outputs, outputs, probabilities)))
        for (metric, target), (_, as_returned), (_, as_probability) in found:
            output = as_probability if metric_takes_probabilities(metric) else as_returned
            try:
                metric.update_state(target_for(metric, target, output), output)
            except Exception as error:
                raise ValueError(f"metric '{metric.name}': {_as_text(error)}") from error

    def take_results(self) -> dict[str, float]:
        """Return the values of the metrics, by name, and reset the metrics. Values that are not finite are left out."""
        if self._metrics is None or not self._metrics.built:
            return {}
        values = {name: float(value) for name, value in self._metrics.result().items()}
        self._metrics.reset_state()
        return {name: value for name, value in values.items() if math.isfinite(value)}


def _as_text(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _spec_of(tensor: tf.Tensor | None) -> tf.TensorSpec | None:
    return None if tensor is None else tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _zeros_like(tensor: tf.Tensor) -> tf.Tensor:
    return tf.zeros([1, *tensor.shape[1:]], tensor.dtype)


def _place_of(one: OutputLoss, outputs: Outputs) -> int:
    """Return the index of the output to which a loss applies, in the order of `keras.tree.flatten`."""
    places = keras.tree.pack_sequence_as(outputs, list(range(len(keras.tree.flatten(outputs)))))
    found: int = reduce(getitem, one.path, places)
    return found


def _of_each(outputs: Outputs, targets: Targets) -> list[tf.Tensor]:
    """Return the targets of each output, in the order of `keras.tree.flatten`."""
    return list(targets) if isinstance(targets, tuple) else [targets] * len(keras.tree.flatten(outputs))


def _in_place_of(outputs: Outputs, targets: Targets) -> Outputs:
    """Return the targets of all outputs, in the same nested structure as the outputs."""
    found: Outputs = keras.tree.pack_sequence_as(outputs, _of_each(outputs, targets))
    return found


def _build(compiled: CompiledPart, targets: Targets, outputs: Outputs) -> None:
    """Let Keras match the losses or metrics to the outputs, unless it already has."""
    if not compiled.built:
        compiled.build(
            *(keras.tree.map_structure(_zeros_like, one) for one in (_in_place_of(outputs, targets), outputs))
        )
