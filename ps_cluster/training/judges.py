"""Judge a network's outputs: loss, metric and prediction of each objective, as graph code."""

from __future__ import annotations

from abc import ABC, abstractmethod

import keras
import tensorflow as tf

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.catalogue.imports import find
from ps_cluster.catalogue.objectives import OBJECTIVES


def judge_of(spec: ExampleSpec, label_smoothing: float = 0.0) -> Judge:
    """Return the judge of a data set's objective. It scores without smoothing."""
    judge: Judge = find(OBJECTIVES[spec.objective].judge)(spec, label_smoothing)
    return judge


class Judge(ABC):
    """Judges a network's outputs, float32 [B, outputs]. All results are float32."""

    def __init__(self, spec: ExampleSpec, label_smoothing: float):
        """Keep what decides the loss. `label_smoothing`: 0..1."""
        self._outputs = spec.outputs
        self._smoothing = label_smoothing

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the targets of packed rows [B, ...] as the other methods take them."""
        return tf.cast(rows, tf.float32)

    @abstractmethod
    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, [B]."""

    @abstractmethod
    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the metric of each example, [B]. Outputs that are not finite are wrong."""

    @abstractmethod
    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the predictions, [B, outputs]: probabilities, or values in the target's units."""

    def finished(self, model: keras.Model) -> keras.Model:
        """Return the model to save, whose outputs a user can take as they are."""
        return model

    def loss(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return the mean loss of a batch, []."""
        return tf.reduce_mean(self.losses(targets, outputs))


class ClassificationJudge(Judge):
    """Cross-entropy of the softmax, in nats; labels smoothed as in Szegedy et al. 2016, arXiv:1512.00567, section 7."""

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return labels int32 [B]."""
        return tf.cast(rows, tf.int32)

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        off = self._smoothing / self._outputs
        smoothed = tf.one_hot(targets, self._outputs, 1 - self._smoothing + off, off)
        return tf.nn.softmax_cross_entropy_with_logits(smoothed, outputs)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Return 1 where the largest output is that of the label. The argmax of NaN is 0, so NaN is ruled out first."""
        sound = tf.reduce_all(tf.math.is_finite(outputs), axis=-1)
        return tf.cast(sound & (tf.argmax(outputs, -1, tf.int32) == targets), tf.float32)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(outputs)


class MultiLabelJudge(Judge):
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


class RegressionJudge(Judge):
    """Mean squared error over the target's values, in units of their standard deviation over the training examples.

    The network's outputs are standardised: 0 is the training examples' mean, 1 a standard deviation more. So learning
    rates need not know the target's units. The metric is the mean absolute error in the target's own units.
    """

    def __init__(self, spec: ExampleSpec, label_smoothing: float):
        super().__init__(spec, label_smoothing)
        self._mean = tf.constant(spec.target.mean or 0.0, tf.float32)
        self._std = tf.constant([value or 1.0 for value in spec.target.std] or 1.0, tf.float32)

    def targets(self, rows: tf.Tensor) -> tf.Tensor:
        """Return float32 [B, outputs] in the target's own units."""
        return tf.reshape(tf.cast(rows, tf.float32), [-1, self._outputs])

    def losses(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(outputs - (targets - self._mean) / self._std), axis=-1)

    def metric(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.abs(self.prediction(outputs) - targets), axis=-1)

    def prediction(self, outputs: tf.Tensor) -> tf.Tensor:
        return outputs * self._std + self._mean

    def finished(self, model: keras.Model) -> keras.Model:
        """Return a model whose outputs are in the target's own units."""
        units = keras.layers.Rescaling(self._std.numpy(), self._mean.numpy(), dtype="float32", name="units")
        return keras.Model(model.inputs, units(model.outputs[0]), name=model.name)
