"""Average the outputs for an image over six views of it (test-time augmentation)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ps_cluster.data.packed import PackedDataset
from ps_cluster.training.judges import LossAndMetric

Inputs = Mapping[str, tf.Tensor]


def mean_over_views(outputs: Callable[[Inputs], tf.Tensor], inputs: Inputs) -> tf.Tensor:
    """Return outputs by the multi-crop evaluation of airbench (Jordan 2024, arXiv:2404.00498, section 3.5).

    The views: the image; shifted by one pixel up and left; shifted down and right (borders reflected); each also
    mirrored. The two that are not shifted weigh 1/4 each, the other four 1/8 each.

    Args:
      outputs: name → float32 [B, H, W, C] to float32 [B, outputs].
      inputs: the same, of one image.
    Returns:
      float32 [B, outputs].
    """
    ((name, images),) = inputs.items()
    height, width = images.shape[1:3]
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    shifted = padded[:, :height, :width], padded[:, 2:, 2:]

    def both_ways(view: tf.Tensor) -> tf.Tensor:
        return (outputs({name: view}) + outputs({name: tf.reverse(view, axis=[2])})) / 2

    return both_ways(images) / 2 + (both_ways(shifted[0]) + both_ways(shifted[1])) / 4


# Compute the gradient of the training's loss on a few fixed training examples, to see how it changes over a run.

EXAMPLES = 50  # as many as are scored together, so that the evaluator takes little more memory


class GradientProbe:
    """The gradient at a model's weights, on examples that are spread evenly over the training set.

    It is not the gradient of any step: there is no augmentation, no dropout and no regulariser, and batch normalisation
    takes its moving statistics.
    """

    def __init__(
        self, model: keras.Model, outputs: Callable[[dict[str, Any]], Any], judge: LossAndMetric, dataset: PackedDataset
    ):
        """Keep the examples.

        Args:
          outputs: name of an input → rows [B, ...], to the outputs of `model`.
          judge: has the loss of the training.
        """
        self._variables = model.trainable_variables
        chosen = np.unique(np.linspace(0, dataset.train_examples - 1, EXAMPLES).astype(np.int64))
        self._inputs = {name: np.asarray(rows[chosen]) for name, rows in dataset.inputs("train").items()}
        self._target = np.asarray(dataset.target("train")[chosen])
        weight = dataset.weight("train")
        self._weight = None if weight is None else np.asarray(weight[chosen])
        self._outputs, self._judge = outputs, judge
        self._graph = tf.function(self._gradient, autograph=False)

    def __call__(self) -> np.ndarray:
        """Return the gradient at the model's weights of now: float32 [n], in the order of its trainable variables."""
        found: np.ndarray = self._graph().numpy()
        return found

    def _gradient(self) -> tf.Tensor:
        targets = self._judge.targets(tf.constant(self._target))
        with tf.GradientTape() as tape:
            loss = self._judge.loss(targets, self._outputs(self._inputs), self._judge.weights(targets, self._weight))
        values = [variable.value for variable in self._variables]
        gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tf.concat([tf.reshape(tf.cast(one, tf.float32), [-1]) for one in gradients], axis=0)
