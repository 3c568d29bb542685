"""Weights and statistics of some versions ago: what makes a few workers as stale as many would be."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class History:
    """The vectors of the last `delay` + 1 versions of a slice. Create and use it on the slice's device.

    A worker that is given the parameters of `delay` versions ago pushes a gradient that is `delay` versions staler than it
    would be. With `simulate_workers` k and W real workers the delay is k - W, and the mean staleness k - 1.
    """

    def __init__(self, vectors: Sequence[tf.Variable], delay: int):
        """`delay`: in versions; below 1 nothing is kept."""
        self._vectors = vectors
        self._length = max(0, delay) + 1
        if self._length > 1:
            self._rings = [tf.Variable(tf.tile(vector[None], [self._length, 1])) for vector in vectors]
            self._oldest = tf.Variable(0, dtype=tf.int64)

    def read(self, version: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return (the vectors, their version []) as of `delay` versions ago, or the oldest there are."""
        if self._length == 1:
            return [vector.read_value() for vector in self._vectors], version
        given = tf.maximum(version - (self._length - 1), self._oldest.read_value())
        return [ring.sparse_read(given % self._length) for ring in self._rings], given

    def write(self, version: tf.Tensor) -> list[tf.Operation]:
        """Keep the vectors as they are now, at `version`."""
        if self._length == 1:
            return []
        with tf.control_dependencies([version]):
            index = (version % self._length)[None]
            rows = [tf.IndexedSlices(vector.read_value()[None], index) for vector in self._vectors]
        return [ring.scatter_update(row) for ring, row in zip(self._rings, rows)]

    def restart(self, version: tf.Variable) -> None:
        """After a restore: older versions than the restored one are not there any more."""
        if self._length > 1:
            self._oldest.assign(version)
            self.write(version.read_value())
