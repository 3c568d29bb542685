"""Keep a parameter server's part of the ledger: which open steps were accepted, and the newest rows."""

from __future__ import annotations

import numpy as np

from ps_cluster.config.lazy import tf
from ps_cluster.runs.ledger import COLUMNS


class ShardLedger:
    """Keeps the newest part of a shard's ledger, the table of accepted pushes.

    Create it on the shard's device, and use it in the shard's critical section.

    Two ring buffers of fixed size suffice for a run of any length. One holds the step ids accepted last, at
    `step % window`, and the other holds the rows accepted last, at `row number % window`. A step is open until the
    chief knows that all shards have accepted the step, or that the step will never be accepted. The chief takes care
    that nothing is overwritten too early. It hands out a step only if the step's id is less than `window` above the id
    of every open step. And it reads each row before `window` further rows can be written.

    Attributes:
      accepted: int64 [], the number of rows written so far.
    """

    def __init__(self, window: int):
        self._window = window
        self.accepted = tf.Variable(0, dtype=tf.int64)
        self._seen = tf.Variable(tf.zeros([window], tf.int64))  # the step id + 1
        self._rows = tf.Variable(tf.zeros([window, len(COLUMNS)], tf.float64))

    def accepted_steps(self, closed: tf.Tensor) -> tf.Tensor:
        """Return the accepted steps as a snapshot stores them, int64 [1 + k].

        The first number is `closed`. The other numbers stand for the accepted steps whose ids are at least
        `closed`. Each of these numbers is id + 1, because a snapshot fills the rest of a row with zeros.

        A snapshot also holds the number of accepted steps. It does not hold the rows, because they are in the chief's
        journal.

        Args:
          closed: int64 [], a step id. Each step below it was accepted, or will never be accepted.
        """
        seen = self._seen.read_value()
        return tf.concat([closed[None], tf.sort(tf.boolean_mask(seen, seen > closed))], 0)

    def restore(self, accepted_steps: np.ndarray) -> None:
        """Restore the accepted steps from a result of `accepted_steps`. Zeros after the first element are ignored.

        The window may have had another length at the time of the snapshot.
        """
        closed, above = int(accepted_steps[0]), np.sort(accepted_steps[1:])
        marks = np.concatenate([np.arange(max(0, closed - self._window), closed) + 1, above[above > 0]])
        ring = np.zeros(self._window, np.int64)
        # If several steps have the same index, the last of them stays, which is the newest.
        ring[(marks - 1) % self._window] = marks
        self._seen.assign(ring)

    def has(self, steps: tf.Tensor) -> tf.Tensor:
        """Return whether each of `steps` (int64 […]) was accepted, bool […].

        The result is also True for steps that were closed (see `accepted_steps`) so long ago that newer steps have
        overwritten them.
        """
        # If a later step occupies a step's place, the earlier step was closed before the later one was handed out.
        return self._seen.sparse_read(steps % self._window) > steps

    def write(self, rows: tf.Tensor) -> tf.Tensor:
        """Write the rows of accepted steps.

        Args:
          rows: float64 [k, len(COLUMNS)], in the order in which they were accepted; k is at most the window.
        Returns:
          An operation that must run before the graph leaves the critical section.
        """
        steps, count = tf.cast(rows[:, 0], tf.int64), tf.shape(rows, tf.int64)[0]
        indices = (self.accepted.read_value() + tf.range(count)) % self._window
        written = [
            self._rows.scatter_update(tf.IndexedSlices(rows, indices)),
            self._seen.scatter_update(tf.IndexedSlices(steps + 1, steps % self._window)),
        ]
        with tf.control_dependencies(written):
            return self.accepted.assign_add(count, read_value=False)

    def read(self, first: tf.Tensor) -> tf.Tensor:
        """Return the rows in the window from row number `first` (int64 []) on, float64 [k, len(COLUMNS)]."""
        end = self.accepted.read_value()
        oldest = tf.maximum(end - self._window, tf.zeros_like(end))
        return self._rows.sparse_read(tf.range(tf.clip_by_value(first, oldest, end), end) % self._window)
