"""Heads: the loss, metric and predictions of an objective, computed from the outputs of a network in a graph.

A head is like a `Head` of TensorFlow's estimators. It has no layers: the dense layer that computes the outputs belongs
to the network.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.config.objectives import BYTES, IN_DEVIATIONS, ExampleSpec, class_weights
from ps_cluster.config.schema import TrainingSettings
from ps_cluster.models.compiled import MicroBatchFactors, Targets
from ps_cluster.models.ends import NetworkEnd
from ps_cluster.models.keras_losses import compares_classes
from ps_cluster.models.marks import (
    OWN_UNITS,
    PROBABILITIES,
    SCORES,
    UNITS,
    followed_by,
    is_marked,
    symbolic_inputs_of,
    with_mark,
)
from ps_cluster.models.pure import Outputs

_SMALLEST = 1e-30  # the smallest probability whose logarithm is taken
PackedTargets: TypeAlias = tf.Tensor | Mapping[str, tf.Tensor]
"""Targets as a packed data set stores them, [B, ...]; if there are several, a mapping: name of the array → targets."""
Compared: TypeAlias = tuple[tf.Tensor, tf.Tensor]
"""The true targets and the predictions of a batch."""
# Keras's 200 thresholds of an area under a curve are 0.005 apart. Where positives are rare, most predictions are below
# the first threshold, and the area comes out too small. More thresholds cost nothing, unless each of many labels has
# its own.
_THRESHOLDS, _THRESHOLDS_OF_LABELS = 2000, 200


class Head(ABC):
    """Computes the loss, the metrics and the predictions from a network's outputs. All results are float32.

    The outputs are float32 [B, outputs], or several such tensors.

    Attributes:
      prediction_head: the head of the single output that is the prediction. Its methods take only this output and its
        target.
    """

    prediction_head: ObjectiveHead

    def predicting(self, outputs: Outputs) -> tf.Tensor:
        """Return the output that is the prediction. By default it is the first output."""
        found: tf.Tensor = keras.tree.flatten(outputs)[0]
        return found

    @property
    def interpretation(self) -> str:
        """A text that tells users how outputs or targets are interpreted; "" if there is only one way."""
        return ""

    @abstractmethod
    def targets(self, rows: PackedTargets) -> Targets:
        """Convert targets from the form in which the data set stores them to the form that the other methods take."""

    def weights(self, targets: Targets, given: tf.Tensor | None) -> tf.Tensor | None:
        """Return the weight of each example, [B]; None if all count alike. `given`: the data set's weights, [B]."""
        return None if given is None else tf.cast(given, tf.float32)

    @abstractmethod
    def scaled(self, targets: Targets) -> Targets:
        """Return the targets in the units of the network's outputs."""

    @abstractmethod
    def losses(self, targets: Targets, outputs: Outputs) -> tf.Tensor:
        """Return the loss of each example, [B]."""

    @abstractmethod
    def metric(self, targets: Targets, outputs: Outputs) -> tf.Tensor:
        """Return the metric of each example, [B]. Outputs that are not finite count as wrong."""

    def further_metrics(self) -> dict[str, keras.Metric]:
        """Return new metrics of Keras that are computed besides `metric`, by name (`Objective.further_metrics`)."""
        return {}

    def compared(self, targets: Targets, outputs: Outputs) -> Compared | None:
        """Return the true targets and the predictions that `further_metrics` compare, float32 [B, ...] each.

        Return None if there are no such metrics.
        """
        return None

    def kept(self, targets: Targets, outputs: Outputs) -> dict[str, tf.Tensor]:
        """Return the arrays to keep for the analysis of a run's results (`Objective.results`), [B, ...] by name.

        Return {} if there is no analysis.
        """
        return {}

    def final(self, outputs: Outputs) -> Outputs:
        """Convert outputs of the network to the outputs that the saved model returns."""
        return outputs

    @abstractmethod
    def as_probabilities(self, outputs: Outputs) -> Outputs:
        """Convert outputs to probabilities or, for a regression, to values in the target's units.

        The structure of the outputs stays the same.
        """

    @abstractmethod
    def finished(self, model: keras.Model) -> keras.Model:
        """Return the model to save. If no layer shows what the outputs mean, a last layer (marks.py) is added."""

    def loss(
        self,
        targets: Targets,
        outputs: Outputs,
        weights: tf.Tensor | None = None,
        part: MicroBatchFactors | None = None,
    ) -> tf.Tensor:
        """Return the loss of a batch, [].

        It is the mean over the B examples. If there are weights, it is the weighted sum divided by B, as in Keras.

        `part`: the factors of this micro-batch, which make the mean over all micro-batches equal the batch's loss.
        """
        losses = self.losses(targets, outputs)
        return tf.reduce_mean(losses if weights is None else losses * weights)


class ObjectiveHead(Head):
    """The head of an objective, for a network with a single output, float32 [B, outputs].

    The targets are a single tensor too, [B, ...].
    """

    gives_scores = False  # whether outputs that are not probabilities are scores of classes or labels
    of_probabilities = False  # whether the outputs are probabilities, not scores
    needs_mark = False  # whether only the loss shows that outputs are probabilities, so a saved model needs a mark

    def __init__(self, spec: ExampleSpec, training: TrainingSettings | None = None):
        """Create a head for outputs that are scores or, for a regression, values in standard deviations of the target.

        `training`: the settings of label smoothing and class weights; None if the loss uses neither.
        """
        self.prediction_head = self
        self.outputs = spec.outputs
        self._inputs = spec.inputs
        self._smoothing = training.label_smoothing if training else 0.0

    def adapt_to(self, end: NetworkEnd, losses: Mapping[int, keras.Loss]) -> None:
        """Adapt the head to the meaning of the outputs. `losses`: the losses of compile(), by the output's index."""
        if losses:
            self.of_probabilities = end.gives_probabilities(losses.get(end.index))
            self.needs_mark = self.of_probabilities and not end.ends_in_probabilities and not end.is_marked

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.cast(rows, tf.float32)

    def scaled(self, targets: tf.Tensor) -> tf.Tensor:
        return targets

    def in_units_of_loss(self, values: tf.Tensor) -> tf.Tensor:
        """Convert scaled targets, or outputs, to the units in which a loss of compile() compares them."""
        return values

    @abstractmethod
    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the predictions, [B, outputs]: probabilities, or values in the target's units."""

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        """Return outputs that lead to `prediction`, e.g. to compute the loss of the mean of several predictions."""
        return self.scaled(prediction)

    def as_probabilities(self, outputs: Outputs) -> Outputs:
        return keras.tree.map_structure(self.prediction, outputs)

    def finished(self, model: keras.Model) -> keras.Model:
        if self.needs_mark:
            return with_mark(model, PROBABILITIES, self._inputs)
        # A model that is a class of the user is not wrapped in another model.
        can_be_marked = self.gives_scores and not self.of_probabilities and symbolic_inputs_of(model)
        return with_mark(model, SCORES, self._inputs) if can_be_marked and not is_marked(model, SCORES) else model


class ClassificationHead(ObjectiveHead):
    """A head whose loss is the softmax cross-entropy, in nats, of smoothed labels.

    Label smoothing: Szegedy et al. 2016, arXiv:1512.00567, sec. 7.
    """

    gives_scores = True

    def __init__(self, spec: ExampleSpec, training: TrainingSettings | None = None):
        super().__init__(spec, training)
        of_classes = training.class_weights if training else {}
        self._of_classes = class_weights(of_classes, spec.classes) if of_classes else None

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the packed labels as int32 [B]."""
        return tf.cast(rows, tf.int32)

    def labels(self, targets: tf.Tensor) -> tf.Tensor:
        """Return the labels, int32 [B]."""
        return targets

    def of_each_class(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return a number for each class, [B, classes]: probabilities if the outputs are probabilities, else scores."""
        return outputs

    def weights(self, targets: tf.Tensor, given: tf.Tensor | None) -> tf.Tensor | None:
        """Return the weight of each example times the weight of its class, [B]; None if all count alike."""
        given = super().weights(targets, given)
        if self._of_classes is None:
            return given
        of_labels = tf.gather(self._of_classes, self.labels(targets))
        return of_labels if given is None else given * of_labels

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        off = self._smoothing / self.outputs
        smoothed = tf.one_hot(self.labels(targets), self.outputs, 1 - self._smoothing + off, off)
        scores = self.of_each_class(outputs)
        return tf.nn.softmax_cross_entropy_with_logits(
            smoothed, _logarithms(scores) if self.of_probabilities else scores
        )

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return 1 for each example whose label has the largest output, else 0."""
        return tf.cast(self._predicted(outputs) == self.labels(targets), tf.float32)

    def _predicted(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the class with the largest output, int32 [B]; -1 if an output is not finite (argmax gives 0 then)."""
        outputs = self.of_each_class(outputs)
        sound = tf.reduce_all(tf.math.is_finite(outputs), axis=-1)
        return tf.where(sound, tf.argmax(outputs, -1, tf.int32), -1)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the probabilities of all classes, [B, classes]."""
        outputs = self.of_each_class(outputs)
        return outputs if self.of_probabilities else tf.nn.softmax(outputs)

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        return prediction if self.of_probabilities else _logarithms(prediction)

    def further_metrics(self) -> dict[str, keras.Metric]:
        if self.outputs == 2:
            return {
                "auc": keras.metrics.AUC(_THRESHOLDS),
                "log_loss": keras.metrics.BinaryCrossentropy(),
                "f1": keras.metrics.F1Score(average="macro", threshold=0.5),
            }
        return {"log_loss": keras.metrics.CategoricalCrossentropy(), "f1": keras.metrics.F1Score(average="macro")}

    def compared(self, targets: tf.Tensor, outputs: tf.Tensor) -> Compared | None:
        """Return one-hot labels and probabilities, [B, classes] each; for two classes, their second columns, [B, 1]."""
        truth, predicted = tf.one_hot(self.labels(targets), self.outputs), _without_nan(self.prediction(outputs))
        return (truth[:, 1:], predicted[:, 1:]) if self.outputs == 2 else (truth, predicted)

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the true and the predicted label, int32 [B], and the probability of each, float32 [B].

        The probabilities are called "confidence" (of the predicted label) and "of_target" (of the true label). Those of
        all other classes would take too much space. For an example with an output that is not finite, "predicted" is
        -1, and both probabilities are 0.
        """
        labels, predicted = self.labels(targets), self._predicted(outputs)
        probabilities = tf.where(predicted[:, None] >= 0, self.prediction(outputs), 0.0)
        return {
            "target": labels,
            "predicted": predicted,
            "confidence": tf.reduce_max(probabilities, axis=-1),
            "of_target": tf.gather(probabilities, labels, axis=1, batch_dims=1),
        }


class OneOutputHead(ClassificationHead):
    """A head for networks that return one number for two classes, [B, 1]: the score or probability of the second class.

    The score of the first class counts as 0, so the loss and the metric are those of a network with two outputs. The
    second class is predicted if its score is above 0, that is, if its probability is above 1/2. Targets are float32
    [B, 1], 0 or 1, as Keras's losses and metrics take them for such a network.
    """

    def adapt_to(self, end: NetworkEnd, losses: Mapping[int, keras.Loss]) -> None:
        """Adapt the head to what the output means. Raises ValueError if a loss needs an output for each class."""
        for loss in losses.values():
            if compares_classes(loss):
                raise ValueError(
                    f"the loss of its compile() ({loss.name}) compares classes with each other, but the network "
                    "returns 1 number: end it with Dense(2), or use binary_crossentropy"
                )
        super().adapt_to(end, losses)

    @property
    def interpretation(self) -> str:
        return f"predicted by one number: the {'probability' if self.of_probabilities else 'score'} of the second class"

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.cast(rows, tf.float32)[:, None]

    def labels(self, targets: tf.Tensor) -> tf.Tensor:
        return tf.cast(targets[:, 0], tf.int32)

    def of_each_class(self, outputs: tf.Tensor) -> tf.Tensor:
        if not self.of_probabilities:
            return tf.concat([tf.zeros_like(outputs), outputs], axis=-1)
        of_second = _clipped(outputs)
        return tf.concat([1 - of_second, of_second], axis=-1)

    def as_probabilities(self, outputs: Outputs) -> Outputs:
        return outputs if self.of_probabilities else keras.tree.map_structure(tf.sigmoid, outputs)

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        of_first, of_second = tf.split(super().outputs_of(prediction), 2, axis=-1)
        return of_second if self.of_probabilities else of_second - of_first


class MultiLabelHead(ObjectiveHead):
    """A head whose loss is the mean binary cross-entropy over the labels, in nats.

    Label smoothing moves targets towards 1/2.
    """

    gives_scores = True

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        smoothed = targets * (1 - self._smoothing) + self._smoothing / 2
        scores = _log_odds(outputs) if self.of_probabilities else outputs
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(smoothed, scores), axis=-1)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the share of labels that are predicted correctly, with a threshold of probability 1/2."""
        given = outputs > (0.5 if self.of_probabilities else 0.0)
        right = tf.math.is_finite(outputs) & (given == (targets > 0.5))
        return tf.reduce_mean(tf.cast(right, tf.float32), axis=-1)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        return _clipped(outputs) if self.of_probabilities else tf.sigmoid(outputs)

    def outputs_of(self, prediction: tf.Tensor) -> tf.Tensor:
        return prediction if self.of_probabilities else _log_odds(prediction)

    def further_metrics(self) -> dict[str, keras.Metric]:
        return {
            "auc": keras.metrics.AUC(_THRESHOLDS_OF_LABELS, multi_label=True, num_labels=self.outputs),
            "f1": keras.metrics.F1Score(average="macro", threshold=0.5),
        }

    def compared(self, targets: tf.Tensor, outputs: tf.Tensor) -> Compared | None:
        """Return the targets and the probabilities, [B, labels]."""
        return targets, _without_nan(self.prediction(outputs))

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the targets, uint8 [B, labels], and the probabilities, float32 [B, labels]."""
        sound = tf.where(tf.math.is_finite(outputs), self.prediction(outputs), math.nan)
        return {"target": tf.cast(targets > 0.5, tf.uint8), "prediction": sound}


def _without_nan(probabilities: tf.Tensor) -> tf.Tensor:
    """Replace probabilities that are not finite by 0, because Keras's metrics refuse them."""
    return tf.where(tf.math.is_finite(probabilities), probabilities, 0.0)


def _logarithms(probabilities: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.maximum(probabilities, _SMALLEST))


def _log_odds(probabilities: tf.Tensor) -> tf.Tensor:
    return _logarithms(probabilities) - _logarithms(1 - probabilities)


def _clipped(outputs: tf.Tensor) -> tf.Tensor:
    """Clip probabilities to 0..1. A network without activation may exceed this range. Non-finite values become NaN."""
    return tf.where(tf.math.is_finite(outputs), tf.clip_by_value(outputs, 0.0, 1.0), math.nan)


class RegressionHead(ObjectiveHead):
    """A head whose loss is the mean squared error over the target's values, in standard deviations.

    The network's outputs are standardised: 0 is the mean of the training examples, and 1 is one standard deviation
    above it. So one learning rate suits all units. If standardising would change what is learned
    (`NetworkEnd.why_own_units`), targets and outputs are in the target's own units. The metric is the mean absolute
    error, always in the target's own units.

    If a target consists of several numbers, each number has its own standard deviation. A loss of compile() gets all
    numbers divided by one common deviation, so that the loss weighs their errors as in the target's own units.
    """

    def __init__(self, spec: ExampleSpec, training: TrainingSettings | None = None):
        super().__init__(spec, training)
        self._mean = self._center = np.array(spec.target.mean or 0.0, np.float64)
        self._std = np.array([value or 1.0 for value in spec.target.std] or 1.0, np.float64)
        self._why_own_units = ""

    def adapt_to(self, end: NetworkEnd, losses: Mapping[int, keras.Loss]) -> None:
        self._why_own_units = end.why_own_units(list(losses.values()))
        if self._why_own_units:
            self._mean, self._std = np.zeros(()), np.ones(())

    @property
    def interpretation(self) -> str:
        return f"targets in their own units ({self._why_own_units})" if self._why_own_units else IN_DEVIATIONS

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the targets in their own units, float64 [B, outputs].

        In float32, numbers that are close together but far from 0 would become equal.
        """
        return tf.reshape(tf.cast(rows, tf.float64), [-1, self.outputs])

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(outputs - self.scaled(targets)), axis=-1)

    def scaled(self, targets: tf.Tensor) -> tf.Tensor:
        """Return the targets minus their mean, in standard deviations, float32."""
        return tf.cast((tf.cast(targets, tf.float64) - self._mean) / self._std, tf.float32)

    def in_units_of_loss(self, values: tf.Tensor) -> tf.Tensor:
        """Convert values in standard deviations of their columns to one common unit for all columns.

        The common unit is the root mean square of the standard deviations. If targets and outputs are in the target's
        own units, `values` is returned as the same tensor, because Keras's losses look up which operation has computed
        it.
        """
        if self._why_own_units:
            return values
        return values * (self._std / np.sqrt(np.mean(self._std**2))).astype(np.float32)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        errors = tf.abs(tf.cast(self.prediction(outputs), tf.float64) - targets)
        return tf.cast(tf.reduce_mean(errors, axis=-1), tf.float32)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the predictions as the saved model returns them, float32."""
        return outputs * self._std.astype(np.float32) + self._mean.astype(np.float32)

    def further_metrics(self) -> dict[str, keras.Metric]:
        return {"rmse": keras.metrics.RootMeanSquaredError(), "r2": keras.metrics.R2Score()}

    def compared(self, targets: tf.Tensor, outputs: tf.Tensor) -> Compared | None:
        """Return targets and predictions in the target's own units, minus the training mean, float32 [B, outputs] each.

        Subtracting the mean does not change the metrics. It keeps small differences of large numbers in float32.
        """
        predicted = tf.cast(outputs, tf.float64) * self._std + self._mean
        return tf.cast(targets - self._center, tf.float32), tf.cast(predicted - self._center, tf.float32)

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the targets, float64, and the predictions, float32, in the target's own units, [B, outputs] each."""
        return {"target": targets, "prediction": self.prediction(outputs)}

    def final(self, outputs: Outputs) -> Outputs:
        return keras.tree.map_structure(self.prediction, outputs)

    def finished(self, model: keras.Model) -> keras.Model:
        """Return a model whose outputs are in the target's own units."""
        if self._why_own_units:
            return model if is_marked(model, OWN_UNITS) else with_mark(model, OWN_UNITS, self._inputs)
        units = keras.layers.Rescaling(
            self._std.astype(np.float32), self._mean.astype(np.float32), dtype="float32", name=UNITS
        )
        return followed_by(model, units, self._inputs)


class NextByteHead(ObjectiveHead):
    """A head for networks that predict the next byte of a text at each position of a window.

    The loss is the mean cross-entropy over the positions, in nats. The metric is the same mean in bits per byte. The
    outputs are a score for each of 256 bytes at each position, end to end: float32 [B, window * 256].
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
        """Return the scores unchanged. They are not probabilities, which would need a softmax for each position."""
        return outputs
