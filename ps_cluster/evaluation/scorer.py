"""Score a checkpoint: accuracy and loss on the whole test set, and accuracy on held-out training images.

TensorFlow is imported when the first scorer is made.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.processes.quiet_import import without_first_lines
from ps_cluster.run.checkpoints import Checkpoint

BATCH_SIZE = 50  # with 500 the evaluator used the most memory of all tasks


@dataclass(frozen=True)
class Scored:
    accuracy: float  # 0..1, share of test images whose highest score is that of their label
    loss: float | None  # mean cross-entropy in nats; None if not finite
    validation_accuracy: float | None = None  # on held-out training images, if there are any
    augmented_accuracy: float | None = None  # of the mean over six views of each image, if asked for


class Scorer:
    """The run's network in its precision, with the weights of the checkpoint scored last."""

    def __init__(self, config: RunConfig, dataset: PackedDataset, threads: int | None = None):
        """Build the network.

        Args:
          threads: TensorFlow's threads in this process; None keeps the default. Set it once, at the start.
        """
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        with without_first_lines():
            import tensorflow as tf

        from ps_cluster.evaluation.views import mean_over_views
        from ps_cluster.models.build import build
        from ps_cluster.models.fused import with_fused_layers

        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        self.test_examples = dataset.test_examples
        self._test = dataset.images("test"), dataset.labels("test")
        self._held_out = (
            (dataset.images("validation"), dataset.labels("validation")) if dataset.validation_examples else None
        )
        self._model = build(config.model, dataset.spec, seed=config.training.seed)
        self._fused = with_fused_layers(self._model)  # the same function, faster; the model itself is what is saved
        scores = partial(self._fused, training=False)
        self._count, self._count_of_views = _counter(scores), _counter(partial(mean_over_views, scores))

    def score(self, checkpoint: Checkpoint, *, augmented: bool = False) -> Scored:
        """Score all test and held-out images once; with `augmented` the test images also by six views.

        Raises:
          UserError: the checkpoint is not of this network.
        """
        self._assign(checkpoint)
        accuracy, loss = _over(self._test, self._count)
        held_out = _over(self._held_out, self._count)[0] if self._held_out else None
        by_views = _over(self._test, self._count_of_views)[0] if augmented else None
        return Scored(accuracy, loss if math.isfinite(loss) else None, held_out, by_views)

    def save_model(self, path: Path) -> None:
        """Save the network with the weights scored last, as a .keras file that loads without this code."""
        self._model.save(path)

    def _assign(self, checkpoint: Checkpoint) -> None:
        from ps_cluster.models.flat import assign

        try:
            for model in (self._model, self._fused):
                assign(model, checkpoint.arrays["weights"], checkpoint.arrays["statistics"])
        except KeyError as error:
            raise UserError(f"checkpoint of step {checkpoint.step}: holds no array {error}") from error
        except ValueError as error:
            raise UserError(f"checkpoint of step {checkpoint.step} is of another network: {error}") from error


def _over(split: tuple[np.ndarray, np.ndarray], count: Callable) -> tuple[float, float]:
    """Return accuracy and mean loss over `split`, images uint8 [N, 32, 32, 3] and labels uint8 [N]."""
    images, labels = split
    correct, loss_sum = 0, 0.0
    for start in range(0, len(labels), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        batch_correct, batch_loss = count(np.asarray(images[batch]), np.asarray(labels[batch]))
        correct += int(batch_correct)
        loss_sum += float(batch_loss)
    return correct / len(labels), loss_sum / len(labels)


def _counter(score: Callable):
    """Return (images uint8 [B, 32, 32, 3], labels uint8 [B]) → (correct int64 [], summed losses float32 [])."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, 32, 32, 3], tf.uint8), tf.TensorSpec([None], tf.uint8)])
    def count(images, labels):
        scores = tf.cast(score(tf.cast(images, tf.float32)), tf.float32)
        labels = tf.cast(labels, tf.int64)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        # The argmax of NaN scores is 0: without this a diverged network would know class 0.
        sound = tf.reduce_all(tf.math.is_finite(scores), axis=-1)
        right = sound & (tf.argmax(scores, axis=-1) == labels)
        return tf.math.count_nonzero(right), tf.reduce_sum(losses)

    return count
