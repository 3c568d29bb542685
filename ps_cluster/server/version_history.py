"""Keep the weights and statistics of past versions, so that few workers can emulate the staleness of many."""

from __future__ import annotations

from collections.abc import Sequence

from ps_cluster.config.lazy import tf


class VersionHistory:
    """Keeps the vectors of the last `delay` + 1 versions of a shard. Create and use it on the shard's device.

    If a worker pulls the parameters of `delay` versions ago, the staleness of its gradient is higher by `delay`. With
    `simulate_workers` k and W real workers, the delay is k - W and the mean staleness is k - 1.
    """

    def __init__(self, vectors: Sequence[tf.Variable], delay: int):
        """Create a ring buffer for each vector. `delay`: a number of versions; if it is below 1, nothing is kept."""
        self._vectors = vectors
        self._length = max(0, delay) + 1
        if self._length > 1:
            self._rings = [tf.Variable(tf.tile(vector[None], [self._length, 1])) for vector in vectors]
            self._oldest = tf.Variable(0, dtype=tf.int64)

    def read(self, version: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the vectors of a past version, and the number of that version, int64 [].

        It is version `version` - `delay`. If that version is not kept, it is the oldest version that is kept.
        """
        if self._length == 1:
            return [vector.read_value() for vector in self._vectors], version
        kept = tf.maximum(version - (self._length - 1), self._oldest.read_value())
        return [ring.sparse_read(kept % self._length) for ring in self._rings], kept

    def write(self, version: tf.Tensor) -> list[tf.Operation]:
        """Store the current vectors as those of `version`."""
        if self._length == 1:
            return []
        with tf.control_dependencies([version]):
            index = (version % self._length)[None]
            rows = [tf.IndexedSlices(vector.read_value()[None], index) for vector in self._vectors]
        return [ring.scatter_update(row) for ring, row in zip(self._rings, rows)]

    def restart(self, version: tf.Variable) -> None:
        """Forget all versions before `version`, after a restore."""
        if self._length > 1:
            self._oldest.assign(version)
            self.write(version.read_value())
