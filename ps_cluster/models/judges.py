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

from ps_cluster.config.objectives import BYTES, IN_DEVIATIONS, OBJECTIVES, ExampleSpec, class_weights
from ps_cluster.config.schema import TrainingSettings
from ps_cluster.models.ends import (
    OF_LOGITS,
    OF_SEVERAL_CLASSES,
    OWN_UNITS,
    PROBABILITIES,
    SCORES,
    UNITS,
    NetworkEnd,
    followed_by,
    is_marked,
    with_mark,
)
from ps_cluster.private_names import (
    compiled_loss_of,
    compiled_metrics_of,
    losses_of,
    metrics_of,
    notes_of,
    with_notes,
    wrapped_by,
)

_SMALLEST = 1e-30  # probability whose logarithm is taken


def judge_of(
    spec: ExampleSpec, training: TrainingSettings | None = None, model: keras.Model | None = None
) -> LossAndMetric:
    """Return the judge of a data set's objective, with the loss that the model was compiled with, if it was.

    Args:
      training: label smoothing and the weights of classes; None to score without both.
      model: whose outputs are judged. None: they are scores, one for each class, or standard deviations.
    """
    kind = OBJECTIVES[spec.objective].judge()
    if model is None:
        return kind(spec, training)
    end = NetworkEnd(model, spec)
    judge = (OneOutputJudge if end.is_one_of_two else kind)(spec, training)
    if not has_loss(model):
        judge.take_in(end, {})
        return judge
    loss = CompiledLoss(model, spec.outputs)
    judge.take_in(end, loss.by_output(judge.scaled(judge.targets(zero_targets(spec))), end.structure))
    return CompiledJudge(judge, loss)


def zero_targets(spec: ExampleSpec, examples: int = 1) -> tf.Tensor:
    """Return packed targets of some examples, all zero, to build a loss or to try it."""
    return tf.zeros([examples, *spec.target.shape], spec.target.dtype)


class MicroBatch(NamedTuple):
    """The factors of losses that are no mean over the examples, where a batch is cut into equal micro-batches.

    With them the mean over the micro-batches is the loss of the batch.
    """

    of_sum: tf.Tensor  # float32 [], how many micro-batches there are
    of_weighted_mean: tf.Tensor  # float32 [], the same, times the share of the batch's weights that this one has


class LossAndMetric(ABC):
    """Judges a network's outputs, float32 [B, outputs]. All results are float32.

    Attributes:
      gives_scores: whether the outputs are scores of classes or labels, if they are no probabilities.
      of_probabilities: whether the outputs are probabilities already, and not scores.
    """

    gives_scores = False
    of_probabilities = False
    _needs_mark = False

    def __init__(self, spec: ExampleSpec, training: TrainingSettings | None = None):
        """Keep what decides the loss. `training`: see `judge_of`."""
        self.outputs = spec.outputs
        self._inputs = spec.inputs
        self._smoothing = training.label_smoothing if training else 0.0

    def take_in(self, end: NetworkEnd, losses: Mapping[int, keras.Loss]) -> None:
        """Take the outputs for what they are. `losses`: of compile(), by the place of their output; none without it."""
        if losses:
            self.of_probabilities = end.gives_probabilities(losses.get(0))
            self._needs_mark = self.of_probabilities and end.is_estimate and not end.is_marked

    @property
    def of_first(self) -> LossAndMetric:
        """The judge of the first output by itself, which is the prediction."""
        return self

    @property
    def reading(self) -> str:
        """How outputs or targets are taken, in words, where there is a choice."""
        return ""

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

    def as_probabilities(self, outputs: Any) -> Any:
        """Return probabilities of the form of the saved model's outputs; those of a regression as they are."""
        return self.final(outputs)

    def finished(self, model: keras.Model) -> keras.Model:
        """Return the model to save, which says by its last layer what its outputs are, if nothing else in it does."""
        if self._needs_mark:
            return with_mark(model, PROBABILITIES, self._inputs)
        # A class of a user's own stays what it is.
        of_layers = self.gives_scores and not self.of_probabilities and getattr(model, "inputs", None)
        return with_mark(model, SCORES, self._inputs) if of_layers and not is_marked(model, SCORES) else model

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

    gives_scores = True

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
        scores = _logarithms(outputs) if self.of_probabilities else outputs
        return tf.nn.softmax_cross_entropy_with_logits(smoothed, scores)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return 1 where the largest output is that of the label. The argmax of NaN is 0, so NaN is ruled out first."""
        sound = tf.reduce_all(tf.math.is_finite(outputs), axis=-1)
        return tf.cast(sound & (tf.argmax(outputs, -1, tf.int32) == targets), tf.float32)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        return outputs if self.of_probabilities else tf.nn.softmax(outputs)

    def as_probabilities(self, outputs: Any) -> Any:
        return keras.tree.map_structure(self.prediction, outputs)

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        return prediction if self.of_probabilities else _logarithms(prediction)

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return labels int32 [B] and probabilities float32 [B].

        "predicted" is -1, and the probabilities 0, where an output is not finite. All probabilities of many classes
        would take too much room: kept are those of the predicted class ("confidence") and of the right one.
        """
        return _kept_of_classes(targets, outputs, self.prediction(outputs))


class OneOutputJudge(ClassificationJudge):
    """Two classes that one number tells apart, [B, 1]: the score, or the probability, of the second class.

    The score of the first class is 0. So it is a classification of two outputs, and the threshold is a score of 0, which is
    a probability of 1/2. Targets are float32 [B, 1], 0 or 1, as Keras's losses and metrics of such a network take them.
    """

    def take_in(self, end: NetworkEnd, losses: Mapping[int, keras.Loss]) -> None:
        """Take the output for what it is. Raises ValueError for a loss that one number means nothing to."""
        for loss in losses.values():
            if wrapped_by(loss) in OF_SEVERAL_CLASSES:
                raise ValueError(
                    f"the loss of its compile() ({loss.name}) compares classes with each other, and it returns 1 number: end "
                    "it with Dense(2), or take binary_crossentropy"
                )
        super().take_in(end, losses)

    @property
    def reading(self) -> str:
        return f"told apart by one {'probability' if self.of_probabilities else 'score'}"

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.cast(rows, tf.float32)[:, None]

    def weights(self, targets: tf.Tensor, given: tf.Tensor | None) -> tf.Tensor | None:
        return super().weights(_labels(targets), given)

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return super().losses(_labels(targets), self._of_both(outputs))

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return super().metric(_labels(targets), self._of_both(outputs))

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the probabilities of both classes, [B, 2]."""
        return super().prediction(self._of_both(outputs))

    def as_probabilities(self, outputs: Any) -> Any:
        return outputs if self.of_probabilities else keras.tree.map_structure(tf.sigmoid, outputs)

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        of_first, of_second = tf.split(super().outputs_of(prediction), 2, axis=-1)
        return of_second if self.of_probabilities else of_second - of_first

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return _kept_of_classes(_labels(targets), self._of_both(outputs), self.prediction(outputs))

    def _of_both(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the scores, or the probabilities, of both classes, [B, 2]."""
        if not self.of_probabilities:
            return tf.concat([tf.zeros_like(outputs), outputs], axis=-1)
        shares = _shares(outputs)
        return tf.concat([1 - shares, shares], axis=-1)


class MultiLabelJudge(LossAndMetric):
    """Mean binary cross-entropy over the labels, in nats. Label smoothing moves targets towards 1/2."""

    gives_scores = True

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        smoothed = targets * (1 - self._smoothing) + self._smoothing / 2
        scores = _log_odds(outputs) if self.of_probabilities else outputs
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(smoothed, scores), axis=-1)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the share of labels that are right, with a threshold of probability 1/2."""
        given = outputs > (0.5 if self.of_probabilities else 0.0)
        right = tf.math.is_finite(outputs) & (given == (targets > 0.5))
        return tf.reduce_mean(tf.cast(right, tf.float32), axis=-1)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        return _shares(outputs) if self.of_probabilities else tf.sigmoid(outputs)

    def as_probabilities(self, outputs: Any) -> Any:
        return keras.tree.map_structure(self.prediction, outputs)

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        return prediction if self.of_probabilities else _log_odds(prediction)

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return targets uint8 [B, L] and probabilities float32 [B, L]."""
        sound = tf.where(tf.math.is_finite(outputs), self.prediction(outputs), math.nan)
        return {"target": tf.cast(targets > 0.5, tf.uint8), "prediction": sound}


def _kept_of_classes(labels: tf.Tensor, outputs: tf.Tensor, probabilities: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return `ClassificationJudge.kept` for labels int32 [B]; `outputs` and `probabilities` float32 [B, classes]."""
    sound = tf.reduce_all(tf.math.is_finite(outputs), axis=-1)
    probabilities = tf.where(sound[:, None], probabilities, 0.0)
    return {
        "target": labels,
        "predicted": tf.where(sound, tf.argmax(outputs, -1, tf.int32), -1),
        "confidence": tf.reduce_max(probabilities, axis=-1),
        "of_target": tf.gather(probabilities, labels, axis=1, batch_dims=1),
    }


def _logarithms(probabilities: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.maximum(probabilities, _SMALLEST))


def _log_odds(probabilities: tf.Tensor) -> tf.Tensor:
    return _logarithms(probabilities) - _logarithms(1 - probabilities)


def _shares(outputs: tf.Tensor) -> tf.Tensor:
    """Return outputs that estimate probabilities as such: a network without an activation can leave 0 to 1."""
    return tf.where(tf.math.is_finite(outputs), tf.clip_by_value(outputs, 0.0, 1.0), math.nan)


def _labels(targets: tf.Tensor) -> tf.Tensor:
    """Return labels int32 [B] of targets float32 [B, 1]."""
    return tf.cast(targets[:, 0], tf.int32)


class RegressionJudge(LossAndMetric):
    """Mean squared error over the target's values, in units of their standard deviation over the training examples.

    The network's outputs are standardised: 0 is the training examples' mean, 1 a standard deviation more. So learning
    rates need not know the target's units. Where that would change what is learned (`NetworkEnd.why_own_units`), targets
    and outputs are in the target's own units. The metric is the mean absolute error in the target's own units.
    """

    def __init__(self, spec: ExampleSpec, training: TrainingSettings | None = None):
        super().__init__(spec, training)
        self._mean = np.array(spec.target.mean or 0.0, np.float64)
        self._std = np.array([value or 1.0 for value in spec.target.std] or 1.0, np.float64)
        self._why_own_units = ""

    def take_in(self, end: NetworkEnd, losses: Mapping[int, keras.Loss]) -> None:
        self._why_own_units = end.why_own_units(list(losses.values()))
        if self._why_own_units:
            self._mean, self._std = np.zeros(()), np.ones(())

    @property
    def reading(self) -> str:
        return f"targets as they are ({self._why_own_units})" if self._why_own_units else IN_DEVIATIONS

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
        if self._why_own_units:
            return model if is_marked(model, OWN_UNITS) else with_mark(model, OWN_UNITS, self._inputs)
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

    def __init__(self, objective: LossAndMetric, loss: CompiledLoss):
        self._objective = objective
        self._loss = loss
        self.targets, self.weights = objective.targets, objective.weights  # type: ignore[method-assign]
        self.outputs_of, self.as_probabilities = objective.outputs_of, objective.as_probabilities  # type: ignore[method-assign]
        self.final, self.finished = objective.final, objective.finished  # type: ignore[method-assign]

    @property
    def of_first(self) -> LossAndMetric:
        return self._objective

    @property
    def reading(self) -> str:
        return self._objective.reading

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
        self._graph = tf.function(self._sum_of_step, autograph=False)

    def by_output(self, targets: tf.Tensor, outputs: Any) -> dict[int, keras.Loss]:
        """Return the losses by the places of their outputs. Raises ValueError where Keras can't find them.

        Args:
          targets: of an example, as losses take them. outputs: forms of the outputs, as the model returns them.
        """
        try:
            with tf.init_scope():
                _build(self._compiled, targets, outputs)
        except Exception as error:
            raise ValueError(f"the loss of its compile() fails: {_told(error)}") from error
        places = keras.tree.pack_sequence_as(outputs, list(range(len(keras.tree.flatten(outputs)))))
        return {reduce(getitem, one.path, places): one.loss for one in losses_of(self._compiled)}

    def __call__(
        self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None, part: MicroBatch | None = None
    ) -> tf.Tensor:
        """Return the loss of a batch, float32 []. `part`: as for `LossAndMetric.loss`."""
        # Keras's losses take a probability's score, where it has one: the gradient of a probability of 0 or 1 is lost.
        given = (targets, outputs, weights, [notes_of(output) for output in keras.tree.flatten(outputs)])
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

    def _sum_of_step(
        self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None, notes: Any, part: MicroBatch | None = None
    ) -> tf.Tensor:
        noted = [with_notes(output, one) for output, one in zip(keras.tree.flatten(outputs), notes, strict=True)]
        return self._sum(targets, keras.tree.pack_sequence_as(outputs, noted), weights, part)

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

    def update(self, targets: tf.Tensor, outputs: Any, probabilities: Any) -> None:
        """Take in a batch. In a graph, its variables are made outside of it.

        Args:
          probabilities: what the outputs are, if those are scores; of the same form.
        """
        if self._metrics is None:
            return
        with tf.init_scope():
            if not self._metrics.built:
                _build(self._metrics, targets, outputs)
                zeros = keras.tree.map_structure(_zeros_like, outputs)
                self._update(_zeros_like(targets), zeros, zeros)
                self._metrics.reset_state()
        self._update(targets, outputs, probabilities)

    def try_on(self, targets: tf.Tensor, outputs: Any) -> None:
        """Take in a batch, and forget it. Raises ValueError for a metric that fails, or whose result is no number."""
        if self._metrics is None:
            return
        try:
            self.update(targets, outputs, outputs)
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

    def _update(self, targets: tf.Tensor, outputs: Any, probabilities: Any) -> None:
        pairs = zip(metrics_of(self._metrics, outputs), metrics_of(self._metrics, probabilities))
        for (metric, scores), (_, shares) in pairs:
            output = shares if _takes_probabilities(metric) else scores
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


def _takes_probabilities(metric: keras.Metric) -> bool:
    """Return whether a metric of Keras is right for probabilities alone: nobody has told it that it is given scores.

    Those are the ones that compare with a threshold of 1/2, or with many between 0 and 1, and logarithms of probabilities.
    A threshold or a `from_logits` that somebody has set is of what the network returns, as in Keras.
    """
    if not _is_of_keras(type(metric)):
        return False
    settings: dict[str, Any] = metric.get_config()
    function = wrapped_by(metric)
    if function in OF_LOGITS or "from_logits" in settings:
        return not settings.get("from_logits", False)
    if "num_thresholds" in settings or isinstance(metric, keras.metrics.FBetaScore):
        return True
    if "thresholds" in settings:
        return settings["thresholds"] is None
    threshold: float | None = settings.get("threshold")
    return threshold == 0.5


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
