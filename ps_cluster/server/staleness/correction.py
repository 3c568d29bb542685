"""The base class of corrections: what a shard does with a gradient that comes late.

It asks its method at these points, all in its critical section (`server/shard.py`). At a pull: `given`, which weights the
worker gets. At a push: `accepts`, whether the gradient counts at all; `correct`, how, and for how much; and with `gathers`
above 1 it changes the weights only with every so many gradients. Notation: w are the weights now, w_bak those of the
worker's last pull, g its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ps_cluster.config.lazy import tf
from ps_cluster.config.staleness_methods import StalenessSettings
from ps_cluster.server.capabilities import Capabilities

Corrected = tuple["tf.Tensor", "tf.Tensor | None"]
"""(gradient float32 [n], the share that it counts for, see `UpdateRule.apply`)."""


class Arrival(NamedTuple):
    """A gradient that arrives."""

    worker: tf.Tensor  # int64 [], who pushes it
    pulled: tf.Tensor  # int64 [], the shard's version that it was computed from
    now: tf.Tensor  # int64 [], the shard's version now: the gradients that were accepted so far

    @property
    def staleness(self) -> tf.Tensor:
        """The gradients that this shard accepted between the pull and now, int64 [], 0 or more."""
        return self.now - self.pulled


class Correction:
    """Corrects nothing; the base class of the corrections. Create it on the shard's device.

    Call all methods in the shard's critical section. The section's result must depend on the operations that `on_pull`
    and `after_update` return.

    Attributes:
      capabilities: of this correction. `accepts` is asked only where it `drops`.
      gathers: with every so many accepted gradients the weights change, by their mean.
      needs_step: whether `after_update` has something to do.
      slots: the state for checkpoints, name → float32 [n], [workers, n], or [] for one number of the shard.
      of_version: variables [n] that belong to a version as the weights do; `given` gets those of the version that is pulled.
      backups: the weights of the workers' last pulls, name → [workers, n]; they are not in checkpoints.
      pull_state: what `given` depends on beside the weights, name → [n], or [workers] for a number of each worker.
    """

    capabilities = Capabilities()
    needs_step = False
    gathers = 1

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        """Create the state.

        Args:
          weights: float32 [n], which the update rule changes.
          workers: W, whose staleness is usual: as many as train, or are emulated.
          places: the most workers that there may be, each with a row of its own in a table.
        """
        self._settings: Any = settings
        self._weights = weights
        self._workers = workers
        self.slots: dict[str, tf.Variable] = {}
        self.of_version: Sequence[tf.Variable] = ()
        self.backups: dict[str, tf.Variable] = {}
        self.pull_state: dict[str, tf.Variable] = {}

    def given(self, worker: tf.Tensor, weights: tf.Tensor, *of_version: tf.Tensor) -> tf.Tensor:
        """Return what a worker that pulls gets in place of the weights, float32 [n].

        Args:
          worker: int64 [].
          weights: float32 [n].
        """
        return weights

    def on_pull(self, worker: tf.Tensor, given: tf.Tensor) -> list[tf.Operation]:
        """Remember the weights that a worker pulled.

        Args:
          worker: int64 [].
          given: float32 [n]. Not rounded to the wire's dtype: a rounding error would count as staleness.
        """
        return []

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        """Return the gradient to apply, and the share by which it counts.

        The returned gradient depends on everything that the method reads and writes, so the update comes after that.

        Args:
          gradient: float32 [n].
        """
        return gradient, None

    def accepts(self, arrival: Arrival) -> tf.Tensor:
        """Return whether the gradient counts, bool []. It is asked only of a correction that drops gradients."""
        raise NotImplementedError

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

    capabilities = Capabilities(vectors_per_worker=1)

    def __init__(self, settings: StalenessSettings, weights: tf.Variable, workers: int, places: int):
        super().__init__(settings, weights, workers, places)
        self._backups = tf.Variable(tf.zeros([places, *weights.shape]), trainable=False)
        # It is not enough to start the rows with the weights: a restore changes the weights, and a gradient computed
        # before the parameter server's restart can arrive before its worker's next pull.
        self._pulled = tf.Variable(tf.zeros([places], tf.bool), trainable=False)
        self.backups = {"pulled": self._backups}

    def on_pull(self, worker: tf.Tensor, given: tf.Tensor) -> list[tf.Operation]:
        return [
            self._backups.scatter_update(tf.IndexedSlices(given[None], worker[None])),
            self._pulled.scatter_update(tf.IndexedSlices(tf.constant([True]), worker[None])),
        ]

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        moved = self._weights.read_value() - self._backups.sparse_read(arrival.worker)
        moved = tf.where(self._pulled.sparse_read(arrival.worker), moved, tf.zeros_like(moved))
        return self._corrected(gradient, moved, arrival.worker)

    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        """Return the same as `correct`. `gradient` and `moved` (w - w_bak): float32 [n]."""
        raise NotImplementedError
