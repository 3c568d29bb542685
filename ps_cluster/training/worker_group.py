"""Exchange bytes between the workers of an all-reduce, outside of steps."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_WORD_BYTES = 8


class WorkerGroup:
    """The group of all workers of a strategy, which exchange bytes.

    `index` is the index of the worker that creates this object, and `workers` is the number of workers.
    All workers must call the same methods in the same order.

    Raises from every method:
      tf.errors.OpError: another worker was lost.
    """

    def __init__(self, strategy: tf.distribute.Strategy, index: int, workers: int):
        self._index = index
        self._workers = workers

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
        def summed(values: tf.Tensor) -> tf.Tensor:
            def all_reduce() -> tf.Tensor:
                local = tf.identity(values)  # the all-reduce needs a tensor on the worker's device
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, local)

            return strategy.run(all_reduce)

        self._summed = summed

    def broadcast(self, content: bytes, source: int = 0) -> bytes:
        """Return, at every worker, the content that worker `source` passes. What other workers pass is ignored."""
        sent = content if self._index == source else b""
        length = int(self._sum([len(sent)])[0])
        # The content is sent as int64, padded with zeros up to a whole word.
        words = np.frombuffer(sent.ljust(-(-length // _WORD_BYTES) * _WORD_BYTES, b"\0"), np.int64)
        return self._sum(words).tobytes()[:length]

    def gather(self, content: bytes) -> list[bytes]:
        """Return the contents that the workers passed to this method, in the order of the workers."""
        return [self.broadcast(content, source) for source in range(self._workers)]

    def wait(self) -> None:
        """Wait until every worker calls this method."""
        self._sum([0])

    def _sum(self, values: np.ndarray | list[int]) -> np.ndarray:
        """Return the sum of each value over all workers, int64 [k]. An empty list needs no all-reduce."""
        return self._summed(tf.constant(values, tf.int64)).numpy() if len(values) else np.zeros(0, np.int64)
