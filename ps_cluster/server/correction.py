"""Correct a stale gradient before a parameter server applies it: the base classes of the methods in methods/.

Notation: w are the weights now, w_bak those of the worker's last pull, g its gradient.
"""

from __future__ import annotations

from typing import Any

from ps_cluster.config.registry import tf
from ps_cluster.config.update_settings import StalenessSettings

Corrected = tuple["tf.Tensor", "tf.Tensor | None"]
"""(gradient float32 [n], the share that it counts for, see `UpdateRule.apply`)."""


class Correction:
    """Corrects nothing; the base class of the corrections. Create it on the slice's device.

    Call all methods in the slice's critical section. The section's result must depend on the operations that `on_pull`
    and `after_update` return.

    Attributes:
      needs_step: whether `after_update` has something to do.
      slots: the state for checkpoints, name → float32 [n], [workers, n], or [] for one number of the slice.
      worker_vectors: how many vectors [n] it keeps for each worker, beside slots. worker_slots: how many of its slots are
        [workers, n].
    """

    needs_step = False
    worker_vectors = worker_slots = 0

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int):
        """Create the state. `weights`: float32 [n], which the update rule changes. `workers`: how many there are."""
        self._settings: Any = settings
        self._weights = weights
        self.slots: dict[str, tf.Variable] = {}

    def on_pull(self, worker: tf.Tensor, given: tf.Tensor) -> list[tf.Operation]:
        """Remember the weights that a worker pulled.

        Args:
          worker: int64 [].
          given: float32 [n]. Not rounded to the wire's dtype: a rounding error would count as staleness.
        """
        return []

    def correct(self, gradient: tf.Tensor, worker: tf.Tensor, staleness: tf.Tensor) -> Corrected:
        """Return the gradient to apply, and the share by which it counts.

        The returned gradient depends on everything that the method reads and writes, so the update comes after that.

        Args:
          gradient: float32 [n]. worker: int64 [].
          staleness: int64 [], updates of this slice between the pull and now, 0 or more.
        """
        return gradient, None

    def after_update(self, before: tf.Tensor, learning_rate: tf.Tensor) -> list[tf.Operation]:
        """Learn from the step that an update took.

        Call it under a control dependency on the update, which itself must depend on the read of `before`.

        Args:
          before: float32 [n], the weights before the update.
          learning_rate: float32 [], that of the update.
        """
        return []


class WithBackups(Correction):
    """The base of methods that need w - w_bak.

    The pulled weights are not in checkpoints: after a restore, a worker's gradients are not corrected until its next
    pull.
    """

    worker_vectors = 1

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int):
        super().__init__(settings, weights, workers)
        self._backups = tf.Variable(tf.zeros([workers, *weights.shape]), trainable=False)
        # It is not enough to start the rows with the weights: a restore changes the weights, and a gradient computed
        # before the parameter server's restart can arrive before its worker's next pull.
        self._pulled = tf.Variable(tf.zeros([workers], tf.bool), trainable=False)

    def on_pull(self, worker: tf.Tensor, given: tf.Tensor) -> list[tf.Operation]:
        return [
            self._backups.scatter_update(tf.IndexedSlices(given[None], worker[None])),
            self._pulled.scatter_update(tf.IndexedSlices(tf.constant([True]), worker[None])),
        ]

    def correct(
        self, gradient: tf.Tensor, worker: tf.Tensor, staleness: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        moved = self._weights.read_value() - self._backups.sparse_read(worker)
        moved = tf.where(self._pulled.sparse_read(worker), moved, tf.zeros_like(moved))
        return self._corrected(gradient, moved, worker)

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        """Return the same as `correct`. `gradient` and `moved` (w - w_bak): float32 [n]."""
        raise NotImplementedError
