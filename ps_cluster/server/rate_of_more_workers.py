"""Lower the learning rate while more workers take part than at the start. This works with every staleness method."""

from __future__ import annotations

import math

from ps_cluster.config import MOST_WORKERS_OF_A_CLUSTER
from ps_cluster.config.lazy import tf
from ps_cluster.runs.ledger import RATE_RETURNS_OVER, TAKES_PART_FOR
from ps_cluster.server.ordering import after

NEVER = math.inf


class RateOfMoreWorkers:
    """Lowers the learning rate while more workers take part than at the beginning of training.

    With W workers, the mean staleness is W - 1. Which minima are stable depends on learning rate * (staleness + 1): for
    large delays, the rate that keeps the same minima stable is inversely proportional to the delay (Giladi et al. 2020,
    "At Stability's Edge", arXiv:1909.12340). The learning rate of a run suits the W workers with which it began. With
    more workers the loss jumps and stays higher. So while n > W workers take part, the rate is multiplied by (W / n)^2.
    A factor of W / n was not enough, and a factor that returns to 1 only postpones the damage (docs/results.md).

    The factor falls at once, with the first gradient of a new worker. When workers leave, each update multiplies it by
    1 + 1 / RATE_RETURNS_OVER, until it suits the remaining workers. With W workers or fewer it is 1. A worker counts as
    having left once TAKES_PART_FOR * N updates by other workers have followed its last update, where N is the number
    of workers that have ever taken part, or W if that is more.

    Create it on the shard's device, and call it in the shard's critical section.
    """

    def __init__(self, workers: int):
        """Create the state. `workers`: W, the number of workers with which training begins."""
        self._begun = tf.Variable(float(workers), trainable=False)
        self._factor = tf.Variable(1.0, trainable=False)
        # For each worker, the number of updates since its last update. The vector has a number for each worker that a
        # cluster can have, not only for the workers of this run. So if a training is resumed with fewer workers, the
        # others still take part until their last update is too long ago. The proof counts in the same way.
        self._ages = tf.Variable(tf.fill([MOST_WORKERS_OF_A_CLUSTER], NEVER), trainable=False)
        self.slots = {"begun_with": self._begun, "rate_factor": self._factor, "ages": self._ages}

    def factor(self, worker: tf.Tensor) -> tf.Tensor:
        """Count an update, and return the factor for its learning rate, float32 [].

        Args:
          worker: int64 [], the worker whose gradient the update applies.
        """
        workers = tf.range(MOST_WORKERS_OF_A_CLUSTER, dtype=tf.int64)
        ages = tf.where(workers == worker, 0.0, self._ages.read_value() + 1)
        begun = self._begun.read_value()
        ever = tf.reduce_sum(tf.cast(ages < NEVER, tf.float32))
        take_part = tf.reduce_sum(tf.cast(ages < TAKES_PART_FOR * tf.maximum(begun, ever), tf.float32))
        suits = tf.square(tf.minimum(1.0, begun / take_part))
        factor = tf.minimum(suits, self._factor.read_value() * (1 + 1 / RATE_RETURNS_OVER))
        return after([self._ages.assign(ages, read_value=False), self._factor.assign(factor, read_value=False)], factor)
