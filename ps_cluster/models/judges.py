"""Judge a network's outputs, as graph code: by loss and metric of each objective, or those that a model was compiled with."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config.objectives import BYTES, OBJECTIVES, ExampleSpec, Field, class_weights
from ps_cluster.config.registry import import_object
from ps_cluster.config.schema import TrainingSettings
from ps_cluster.models.flat import as_arguments
from ps_cluster.private_names import compiled_loss_of, compiled_metrics_of, losses_of, metrics_of, wrapped_by

_SMALLEST = 1e-30  # probability whose logarithm is taken


def judge_of(
    spec: ExampleSpec, training: TrainingSettings | None = None, model: keras.Model | None = None
) -> LossAndMetric:
    """Return the judge of a data set's objective, with the loss that the model was compiled with, if it was.

    Args:
      training: label smoothing and the weights of classes; None to score without both.
    """
    judge: LossAndMetric = import_object(OBJECTIVES[spec.objective].judge)(spec, training)
    if model is None or not has_loss(model):
        return judge
    if gives_predictions(model, spec):
        judge.prediction = tf.identity  # type: ignore[method-assign]
    return CompiledJudge(judge, model)


class MicroBatch(NamedTuple):
    """The factors of losses that are no mean over the examples, where a batch is cut into equal micro-batches.

    With them the mean over the micro-batches is the loss of the batch.
    """

    of_sum: tf.Tensor  # float32 [], how many micro-batches there are
    of_weighted_mean: tf.Tensor  # float32 [], the same, times the share of the batch's weights that this one has


class LossAndMetric(ABC):
    """Judges a network's outputs, float32 [B, outputs]. All results are float32."""

    def __init__(self, spec: ExampleSpec, training: TrainingSettings | None = None):
        """Keep what decides the loss. `training`: see `judge_of`."""
        self.outputs = spec.outputs
        self._smoothing = training.label_smoothing if training else 0.0

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the targets of packed rows [B, ...] as the other methods take them."""
        return tf.cast(rows, tf.float32)

    def weights(self, targets: tf.Tensor, given: tf.Tensor | None) -> tf.Tensor | None:
        """Return how much each example counts, [B]; None if all count alike. `given`: what the data set says, [B]."""
        return None if given is None else tf.cast(given, tf.float32)

    def scaled(self, targets: tf.Tensor) -> tf.Tensor:
        """Return the targets in the units of the network's outputs."""
        return targets

    @abstractmethod
    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, [B]."""

    @abstractmethod
    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the metric of each example, [B]. Outputs that are not finite are wrong."""

    @abstractmethod
    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the predictions, [B, outputs]: probabilities, or values in the target's units."""

    def kept(self, targets: tf.Tensor, outputs: Any) -> dict[str, tf.Tensor]:
        """Return what results are made of (`Objective.results`): name → [B, ...]; nothing if the objective has none."""
        return {}

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        """Return outputs whose prediction is this one, to judge a mean of predictions."""
        return self.scaled(prediction)

    def final(self, outputs: Any) -> Any:
        """Return what the saved model returns for these outputs."""
        return outputs

    def finished(self, model: keras.Model) -> keras.Model:
        """Return the model to save, whose outputs a user can take as they are."""
        return model

    def loss(
        self,
        targets: tf.Tensor,
        outputs: tf.Tensor,
        weights: tf.Tensor | None = None,
        part: MicroBatch | None = None,
    ) -> tf.Tensor:
        """Return the loss of a batch, []: the mean. Weighted, it is the weighted sum over the batch's size, as in Keras.

        Args:
          part: of a micro-batch; then the mean over the micro-batches is the loss of the batch.
        """
        losses = self.losses(targets, outputs)
        return tf.reduce_mean(losses if weights is None else losses * weights)


class ClassificationJudge(LossAndMetric):
    """Cross-entropy of the softmax, in nats; labels smoothed as in Szegedy et al. 2016, arXiv:1512.00567, section 7."""

    def __init__(self, spec: ExampleSpec, training: TrainingSettings | None = None):
        super().__init__(spec, training)
        of_classes = training.class_weights if training else {}
        self._of_classes = class_weights(of_classes, spec.classes) if of_classes else None

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return labels int32 [B]."""
        return tf.cast(rows, tf.int32)

    def weights(self, targets: tf.Tensor, given: tf.Tensor | None) -> tf.Tensor | None:
        """Return the examples' own weights times those of their classes."""
        given = super().weights(targets, given)
        if self._of_classes is None:
            return given
        of_labels = tf.gather(self._of_classes, targets)
        return of_labels if given is None else given * of_labels

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        off = self._smoothing / self.outputs
        smoothed = tf.one_hot(targets, self.outputs, 1 - self._smoothing + off, off)
        return tf.nn.softmax_cross_entropy_with_logits(smoothed, outputs)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return 1 where the largest output is that of the label. The argmax of NaN is 0, so NaN is ruled out first."""
        sound = tf.reduce_all(tf.math.is_finite(outputs), axis=-1)
        return tf.cast(sound & (tf.argmax(outputs, -1, tf.int32) == targets), tf.float32)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(outputs)

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.maximum(prediction, _SMALLEST))

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return labels int32 [B] and probabilities float32 [B].

        "predicted" is -1, and the probabilities 0, where an output is not finite. All probabilities of many classes
        would take too much room: kept are those of the predicted class ("confidence") and of the right one.
        """
        sound = tf.reduce_all(tf.math.is_finite(outputs), axis=-1)
        probabilities = tf.where(sound[:, None], self.prediction(outputs), 0.0)
        return {
            "target": targets,
            "predicted": tf.where(sound, tf.argmax(outputs, -1, tf.int32), -1),
            "confidence": tf.reduce_max(probabilities, axis=-1),
            "of_target": tf.gather(probabilities, targets, axis=1, batch_dims=1),
        }


class MultiLabelJudge(LossAndMetric):
    """Mean binary cross-entropy over the labels, in nats. Label smoothing moves targets towards 1/2."""

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        smoothed = targets * (1 - self._smoothing) + self._smoothing / 2
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(smoothed, outputs), axis=-1)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the share of labels that are right, with a threshold of probability 1/2."""
        right = tf.math.is_finite(outputs) & ((outputs > 0) == (targets > 0.5))
        return tf.reduce_mean(tf.cast(right, tf.float32), axis=-1)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(outputs)

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.maximum(prediction, _SMALLEST)) - tf.math.log(tf.maximum(1 - prediction, _SMALLEST))

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return targets uint8 [B, L] and probabilities float32 [B, L]."""
        sound = tf.where(tf.math.is_finite(outputs), self.prediction(outputs), math.nan)
        return {"target": tf.cast(targets > 0.5, tf.uint8), "prediction": sound}


class RegressionJudge(LossAndMetric):
    """Mean squared error over the target's values, in units of their standard deviation over the training examples.

    The network's outputs are standardised: 0 is the training examples' mean, 1 a standard deviation more. So learning
    rates need not know the target's units. The metric is the mean absolute error in the target's own units.
    """

    def __init__(self, spec: ExampleSpec, training: TrainingSettings | None = None):
        super().__init__(spec, training)
        self._inputs = spec.inputs
        self._mean = np.array(spec.target.mean or 0.0, np.float64)
        self._std = np.array([value or 1.0 for value in spec.target.std] or 1.0, np.float64)

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return float64 [B, outputs] in the target's own units: float32 may tell neighbours far from 0 not apart."""
        return tf.reshape(tf.cast(rows, tf.float64), [-1, self.outputs])

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(outputs - self.scaled(targets)), axis=-1)

    def scaled(self, targets: tf.Tensor) -> tf.Tensor:
        """Return the targets less their mean, in standard deviations, float32."""
        return tf.cast((tf.cast(targets, tf.float64) - self._mean) / self._std, tf.float32)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        errors = tf.abs(tf.cast(self.prediction(outputs), tf.float64) - targets)
        return tf.cast(tf.reduce_mean(errors, axis=-1), tf.float32)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the predictions as the saved model gives them, float32."""
        return outputs * self._std.astype(np.float32) + self._mean.astype(np.float32)

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return targets float64 and predictions float32 in the target's own units, [B, outputs]."""
        return {"target": targets, "prediction": self.prediction(outputs)}

    def final(self, outputs: Any) -> Any:
        return keras.tree.map_structure(self.prediction, outputs)

    def finished(self, model: keras.Model) -> keras.Model:
        """Return a model whose outputs are in the target's own units."""
        units = keras.layers.Rescaling(
            self._std.astype(np.float32), self._mean.astype(np.float32), dtype="float32", name=UNITS
        )
        return followed_by(model, units, self._inputs)


class NextByteJudge(LossAndMetric):
    """Mean cross-entropy over the places of a window, in nats; the metric is the same in bits per byte.

    Outputs are `BYTES` scores for each place, end to end: float32 [B, window * BYTES].
    """

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the bytes, int32 [B, window]."""
        return tf.cast(rows, tf.int32)

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        scores = tf.reshape(outputs, [-1, self.outputs // BYTES, BYTES])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores), axis=-1)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return self.losses(targets, outputs) / math.log(2)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the scores as they are: a softmax would be of each place by itself."""
        return outputs


class CompiledJudge(LossAndMetric):
    """Judges by the loss that a user's model was compiled with; metric and prediction are the objective's.

    A model may have several outputs, which are all judged against the one target. The first of them is the prediction.
    """

    def __init__(self, objective: LossAndMetric, model: keras.Model):
        self._objective = objective
        self._loss = CompiledLoss(model, objective.outputs)
        self.targets, self.weights = objective.targets, objective.weights  # type: ignore[method-assign]
        self.outputs_of = objective.outputs_of  # type: ignore[method-assign]
        self.final, self.finished = objective.final, objective.finished  # type: ignore[method-assign]

    def loss(
        self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None = None, part: MicroBatch | None = None
    ) -> tf.Tensor:
        return self._loss(self._objective.scaled(targets), outputs, weights, part)

    def losses(self, targets: tf.Tensor, outputs: Any) -> tf.Tensor:
        """Return the mean loss of the batch for each example: Keras's losses may be of a batch as a whole."""
        return tf.fill(tf.shape(targets)[:1], self._loss.mean(self._objective.scaled(targets), outputs))

    def metric(self, targets: tf.Tensor, outputs: Any) -> tf.Tensor:
        return self._objective.metric(targets, _first(outputs))

    def prediction(self, outputs: Any) -> tf.Tensor:
        return self._objective.prediction(_first(outputs))

    def kept(self, targets: tf.Tensor, outputs: Any) -> dict[str, tf.Tensor]:
        return self._objective.kept(targets, _first(outputs))


def _first(outputs: Any) -> tf.Tensor:
    return keras.tree.flatten(outputs)[0]


# The losses and metrics that a model was compiled with, as functions of targets and outputs.

# Keras's base classes, which say nothing about the targets of a class that a user derives from them.
_BASES = (keras.losses.Loss, keras.metrics.Metric, keras.metrics.Mean, keras.metrics.Sum)


def has_loss(model: keras.Model) -> bool:
    """Return whether a model was compiled with a loss."""
    return compiled_loss_of(model) is not None


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

    def __call__(
        self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None, part: MicroBatch | None = None
    ) -> tf.Tensor:
        """Return the loss of a batch, float32 []. `part`: as for `LossAndMetric.loss`."""
        given = (targets, outputs, weights)
        of_part = part and MicroBatch(*map(tf.TensorSpec.from_tensor, part))
        # Outside of any strategy: within one, Keras divides a loss by the number of replicas.
        with tf.init_scope():
            _build(self._compiled, targets, outputs)
            graph = self._graph.get_concrete_function(*keras.tree.map_structure(_spec_of, given), of_part)
        if any(captured.dtype == tf.resource for captured in graph.captured_inputs):
            raise ValueError("its loss reads a variable, which workers don't have: make it a constant")
        return graph(*given, part)

    def mean(self, targets: tf.Tensor, outputs: Any) -> tf.Tensor:
        """Return the loss of a batch as a mean over its examples, float32 []; so a loss that is a sum is divided."""
        with tf.init_scope():
            _build(self._compiled, targets, outputs)
        size = tf.cast(tf.shape(targets)[0], tf.float32)
        parts = self._losses(targets, outputs, None)
        return tf.add_n([value / size if loss.reduction == "sum" else value for loss, value in parts])

    def try_on(self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None) -> None:
        """Compute the loss of a batch. Raises ValueError if that fails, or if nothing could be learned from it."""
        try:
            with tf.GradientTape() as tape:
                tape.watch(keras.tree.flatten(outputs))
                _build(self._compiled, targets, outputs)
                loss = self._sum(targets, outputs, weights)
            gradients = tape.gradient(loss, keras.tree.flatten(outputs))
            self(targets, outputs, weights)
        except Exception as error:
            raise ValueError(f"the loss of its compile() fails: {_told(error)}") from error
        if loss.shape.rank:
            raise ValueError(f"the loss of its compile() is of shape {list(loss.shape)}, not one number: reduce it")
        if all(gradient is None for gradient in gradients):
            raise ValueError("the loss of its compile() has no gradient: nothing can be learned from it")

    def _sum(
        self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None, part: MicroBatch | None = None
    ) -> tf.Tensor:
        losses = self._losses(targets, outputs, weights)
        return tf.add_n([value if part is None else value * _factor(loss, weights, part) for loss, value in losses])

    def _losses(
        self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None
    ) -> Iterator[tuple[keras.Loss, tf.Tensor]]:
        """Yield each loss and its value, weighted."""
        for one in losses_of(self._compiled):
            output = reduce(getitem, one.path, outputs)
            value = one.loss(_target_for(one.loss, targets, self._outputs), output, weights)
            yield one.loss, tf.cast(value if one.loss_weights is None else value * one.loss_weights, tf.float32)


def _factor(loss: keras.Loss, weights: tf.Tensor | None, part: MicroBatch) -> tf.Tensor | float:
    if loss.reduction == "sum":
        return part.of_sum
    is_weighted_mean = loss.reduction == "mean_with_sample_weight" and weights is not None
    return part.of_weighted_mean if is_weighted_mean else 1.0


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
                _build(self._metrics, targets, outputs)
                self._update(_zeros_like(targets), keras.tree.map_structure(_zeros_like, outputs))
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
    if targets.dtype == tf.float64:  # a user's own may compute in float32 alone, as Keras does
        targets = tf.cast(targets, tf.float32)
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


def _build(compiled: Any, targets: tf.Tensor, outputs: Any) -> None:
    """Let Keras find the loss or metrics of each output, by examples, if it has not."""
    if not compiled.built:
        example = keras.tree.map_structure(_zeros_like, outputs)
        compiled.build(keras.tree.map_structure(lambda _: _zeros_like(targets), outputs), example)


# The end of a model: what its outputs are, and layers after them.

# The last layer of a regression's best model: it turns standard deviations into the target's units. Saved models carry
# the name, so it is one that nobody else gives to a layer.
UNITS = "ps_cluster_units"
_PROBABILITIES = ("Softmax", "Sigmoid")  # operations of TensorFlow
_OF_MEANS = ("AddV2", "AddN", "RealDiv", "Mul", "Mean", "Pack")
_PASS_ON = ("Identity", "IdentityN", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient")


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


def gives_predictions(model: keras.Model, spec: ExampleSpec) -> bool:
    """Return whether the first output of a model is probabilities already, so that no activation has to follow."""
    fields = spec.inputs.items()
    inputs = {name: tf.TensorSpec([None, *field.shape], field.network_dtype) for name, field in fields}
    graph = tf.function(lambda given: keras.tree.flatten(model(as_arguments(given)))[0], autograph=False)
    found, objective = last_activation(graph.get_concrete_function(inputs).outputs[0]), OBJECTIVES[spec.objective]
    return found is not None and (objective.takes_probabilities or found.type.lower() == objective.activation)


def last_activation(tensor: tf.Tensor) -> tf.Operation | None:
    """Return the operation that made a tensor of a graph, or those that it is the mean of, probabilities; None: none did."""
    while tensor.op.type in _PASS_ON:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    if tensor.op.type not in _OF_MEANS:
        return tensor.op if tensor.op.type in _PROBABILITIES else None
    found = None
    for part in tensor.op.inputs:
        if part.op.type != "Const":
            found = last_activation(part)
            if found is None:
                break
    return found
