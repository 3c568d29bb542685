"""One training step as a pure function of its step id and the parameters it pulled."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.data import augment, batches
from ps_cluster.data.packed import TRAIN_IMAGES, TRAIN_LABELS
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.training.schedules import schedule_factor


@dataclass(frozen=True)
class StepResult:
    """The result of one step: the gradient in the dtype of the weights, the rest in float32."""

    gradient: tf.Tensor  # [n]
    fresh: tf.Tensor  # float32 [m], what the batch adds to the kept share of the statistics
    loss: tf.Tensor  # float32 []
    correct: tf.Tensor  # float32 []
    learning_rate: tf.Tensor  # float32 []


class TrainStep:
    """Computes the batch, the forward pass and the gradient of a step id."""

    def __init__(self, config: RunConfig, network: FlatNetwork, *, train_examples: int, classes: int):
        self._config = config
        self._network = network
        self._examples = train_examples
        self._classes = classes
        self._total_steps = config.total_steps(train_examples) * config.batches_per_step

    def __call__(self, step: tf.Tensor, weights: tf.Tensor, statistics: tf.Tensor) -> StepResult:
        """Compute a step. `step`: int64 []; `weights`: [n]; `statistics`: float32 [m]."""
        images, labels = self.batch(step)
        random_state = tf.stack([self._config.training.seed, tf.cast(step, tf.int32)])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            scores, fresh = self._network.scores(weights, statistics, images, random_state)
            loss = self._loss(labels, scores)
        return StepResult(
            gradient=tape.gradient(loss, weights),
            fresh=fresh,
            loss=loss,
            correct=tf.reduce_sum(tf.cast(tf.argmax(scores, 1, tf.int32) == labels, tf.float32)),
            learning_rate=self.learning_rate(step),
        )

    def batch(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the augmented (images [B, 32, 32, 3], pixels 0..255; labels int32 [B]) of a step id."""
        training = self._config.training
        ids, epochs = batches.example_ids(
            step, batch_size=training.batch_size_per_worker, examples=self._examples, seed=training.seed
        )
        data = batches.load_split(TRAIN_IMAGES, TRAIN_LABELS, self._examples)
        images, labels = batches.gather_batch(*data, ids)
        augmentation = self._config.data.augmentation
        return augment.augment(images, ids, epochs, step, seed=training.seed, settings=augmentation), labels

    def learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Return the learning rate, float32 [], of the step's update; the steps of one update share it."""
        update, updates = step // self._config.steps_per_update, self._total_steps // self._config.steps_per_update
        return self._config.optimizer.learning_rate * schedule_factor(self._config.schedule, update, updates)

    def _loss(self, labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
        """Return the mean cross-entropy; labels smoothed as in Szegedy et al. 2016 (arXiv:1512.00567, section 7)."""
        smoothing = self._config.training.label_smoothing
        targets = tf.one_hot(
            labels, self._classes, 1 - smoothing + smoothing / self._classes, smoothing / self._classes
        )
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, scores))
