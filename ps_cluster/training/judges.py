"""Judge a network's outputs: loss, metric and prediction of each objective, as graph code."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import keras
import tensorflow as tf

from ps_cluster.config.objectives import OBJECTIVES, ExampleSpec, class_weights
from ps_cluster.config.registry import import_object
from ps_cluster.config.schema import TrainingSettings
from ps_cluster.models.build import UNITS, followed_by, gives_predictions
from ps_cluster.models.compiled import CompiledLoss, has_loss

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

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor | None = None) -> tf.Tensor:
        """Return the loss of a batch, []: the mean. Weighted, it is the weighted sum over the batch's size, as in Keras."""
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
        self._mean = tf.constant(spec.target.mean or 0.0, tf.float32)
        self._std = tf.constant([value or 1.0 for value in spec.target.std] or 1.0, tf.float32)

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return float32 [B, outputs] in the target's own units."""
        return tf.reshape(tf.cast(rows, tf.float32), [-1, self.outputs])

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(outputs - self.scaled(targets)), axis=-1)

    def scaled(self, targets: tf.Tensor) -> tf.Tensor:
        """Return the targets less their mean, in standard deviations."""
        return (targets - self._mean) / self._std

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.abs(self.prediction(outputs) - targets), axis=-1)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        return outputs * self._std + self._mean

    def kept(self, targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return targets and predictions in the target's own units, float32 [B, outputs]."""
        return {"target": targets, "prediction": self.prediction(outputs)}

    def final(self, outputs: Any) -> Any:
        return keras.tree.map_structure(self.prediction, outputs)

    def finished(self, model: keras.Model) -> keras.Model:
        """Return a model whose outputs are in the target's own units."""
        units = keras.layers.Rescaling(self._std.numpy(), self._mean.numpy(), dtype="float32", name=UNITS)
        return followed_by(model, units, self._inputs)


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

    def loss(self, targets: tf.Tensor, outputs: Any, weights: tf.Tensor | None = None) -> tf.Tensor:
        return self._loss(self._objective.scaled(targets), outputs, weights)

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
