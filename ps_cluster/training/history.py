"""Weights of some versions ago: what makes a few workers as stale as many would be."""

from __future__ import annotations

import tensorflow as tf


class History:
    """The weights of the last `delay` + 1 versions of a slice. Create and use it on the slice's device.

    A worker that is given the weights of `delay` versions ago pushes a gradient that is `delay` versions staler than it
    would be. With `simulate_workers` k and W real workers the delay is k - W, and the mean staleness k - 1.
    """

    def __init__(self, weights: tf.Variable, delay: int):
        """`delay`: in versions; below 1 nothing is kept."""
        self._weights = weights
        self._length = max(0, delay) + 1
        if self._length > 1:
            self._ring = tf.Variable(tf.tile(weights[None], [self._length, 1]))
            self._oldest = tf.Variable(0, dtype=tf.int64)

    def read(self, version: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(weights float32 [n], their version []) as of `delay` versions ago, or the oldest there are."""
        if self._length == 1:
            return self._weights.read_value(), version
        given = tf.maximum(version - (self._length - 1), self._oldest.read_value())
        return self._ring.sparse_read(given % self._length), given

    def write(self, version: tf.Tensor) -> list[tf.Operation]:
        """Keeps the weights as they are now, at `version`."""
        if self._length == 1:
            return []
        with tf.control_dependencies([version]):
            row = tf.IndexedSlices(self._weights.read_value()[None], (version % self._length)[None])
        return [self._ring.scatter_update(row)]

    def restart(self, version: tf.Variable) -> None:
        """After a restore: older versions than the restored one are not there any more."""
        if self._length > 1:
            self._oldest.assign(version)
            self.write(version.read_value())
