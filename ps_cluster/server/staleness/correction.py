"""The base class of corrections, which decide how a shard applies a stale gradient.

The shard (`server/shard.py`) calls its correction in its critical section. At a pull, `given` returns the weights that
the worker gets. At a push, `accepts` decides whether the gradient is applied, and `correct` returns the corrected
gradient and the gradient scale, a factor by which the update multiplies it (see `Gradient`). If the staleness method
returns a number K from `gathered_gradients`, the shard changes the weights only with every K-th gradient, by the mean of
K gradients. In the formulas w is the current weights, w_bak the weights of the worker's last pull, and g the
worker's gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple

from ps_cluster.config.lazy import tf
from ps_cluster.config.staleness_methods import OwnSettings
from ps_cluster.server.capabilities import Capabilities

Corrected = tuple["tf.Tensor", "tf.Tensor | None"]
"""The gradient to apply, float32 [n], and the factor `scale` of `Gradient`; None for a factor of 1."""


class Arrival(NamedTuple):
    """Describes a gradient that arrives at a shard: its worker, and the shard's version at the pull and now."""

    worker: tf.Tensor  # int64 [], the worker that pushes the gradient
    pulled: tf.Tensor  # int64 [], the shard's version from which the gradient was computed
    now: tf.Tensor  # int64 [], the shard's current version: the number of gradients accepted so far

    @property
    def staleness(self) -> tf.Tensor:
        """The number of gradients that this shard has accepted since the pull, int64 [], 0 or more."""
        return self.now - self.pulled


class Correction(Generic[OwnSettings]):
    """Applies stale gradients without correcting them. All other corrections are subclasses of this class.

    Create it on the shard's device.

    The shard calls all methods in its critical section, and lets the section's result depend on the operations that
    `on_pull` and `after_update` return.

    Attributes:
      capabilities: the correction's capabilities. `accepts` is called only if they include `drops`.
      needs_step: whether `after_update` does anything.
      slots: the state for checkpoints, name → float32 [n], [workers, n], or [] for one number of the shard.
      of_version: variables [n], besides the weights, whose values are passed to `given`, as they were at the version
        that the worker pulls.
      backups: the weights of the workers' last pulls, name → [workers, n]. Checkpoints do not contain them.
      pull_state: all variables, besides the weights, on which the result of `given` depends, name → [n], or [workers]
        if there is a number for each worker. They are kept with sampled updates, so that `given` can be checked.
    """

    capabilities = Capabilities()
    needs_step = False

    def __init__(self, settings: OwnSettings, weights: tf.Variable, workers: int, most_workers: int):
        """Create the state.

        Args:
          weights: float32 [n], which the update rule changes.
          workers: W, the number of workers, or `mode.simulate_workers` if it is set. It determines the usual staleness.
          most_workers: the largest number of workers that there may be. Variables [workers, …] have a row for each.
        """
        self._settings = settings
        self._weights = weights
        self._workers = workers
        self.slots: dict[str, tf.Variable] = {}
        self.of_version: Sequence[tf.Variable] = ()
        self.backups: dict[str, tf.Variable] = {}
        self.pull_state: dict[str, tf.Variable] = {}

    def given(self, worker: tf.Tensor, weights: tf.Tensor, *of_version: tf.Tensor) -> tf.Tensor:
        """Return the weights that a worker gets when it pulls, float32 [n].

        Args:
          worker: int64 [].
          weights: float32 [n], the weights of the pulled version.
          of_version: the values that the variables in the attribute `of_version` had at the pulled version, float32 [n]
            each.
        """
        return weights

    def on_pull(self, worker: tf.Tensor, given: tf.Tensor) -> list[tf.Operation]:
        """Return operations that store the weights that a worker pulled.

        Args:
          worker: int64 [].
          given: float32 [n], the weights that the worker gets, before they are rounded to the dtype in which they are
            sent. A rounding error must not look like a change of the weights since the pull.
        """
        return []

    def correct(self, gradient: tf.Tensor, arrival: Arrival) -> Corrected:
        """Return the gradient to apply, and the factor by which the update multiplies it (see `Gradient`).

        The returned gradient has to depend on everything that the method reads and writes, so that the update runs
        after these operations.

        Args:
          gradient: float32 [n].
        """
        return gradient, None

    def accepts(self, arrival: Arrival) -> tf.Tensor:
        """Return whether to apply the gradient, bool []. The shard calls this only if `capabilities.drops` is True."""
        return tf.constant(True)

    def after_update(self, before: tf.Tensor, learning_rate: tf.Tensor) -> list[tf.Operation]:
        """Return operations that update the method's state after an update has changed the weights.

        Args:
          before: float32 [n], the weights before the update.
          learning_rate: float32 [], the learning rate of the update.
        """
        return []


class WithBackups(Correction[OwnSettings], ABC):
    """The base class of corrections that need w - w_bak, the change of the weights since the worker's last pull.

    Checkpoints do not contain the pulled weights. So after a restore, a worker's gradients are not corrected until its
    next pull.
    """

    capabilities = Capabilities(vectors_per_worker=1)

    def __init__(self, settings: OwnSettings, weights: tf.Variable, workers: int, most_workers: int):
        super().__init__(settings, weights, workers, most_workers)
        self._backups = tf.Variable(tf.zeros([most_workers, *weights.shape]), trainable=False)
        # Initialising the rows with the weights is not enough: a restore changes the weights, and a gradient computed
        # before the parameter server's restart can arrive before its worker's next pull.
        self._pulled = tf.Variable(tf.zeros([most_workers], tf.bool), trainable=False)
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

    @abstractmethod
    def _corrected(self, gradient: tf.Tensor, moved: tf.Tensor, worker: tf.Tensor) -> Corrected:
        """Return the result of `correct`: the gradient to apply, and the factor by which the update multiplies it.

        Args:
          gradient: float32 [n].
          moved: float32 [n], the change of the weights since the worker's last pull.
        """
