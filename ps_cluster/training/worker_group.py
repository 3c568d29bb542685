"""Exchange bytes between the workers of an all-reduce, outside of the steps. All call the same methods in the same order."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_WORD_BYTES = 8


class WorkerGroup:
    """The workers of a strategy, as worker `index` of `workers`.

    Raises from every method:
      tf.errors.OpError: another worker was lost.
    """

    def __init__(self, strategy: tf.distribute.Strategy, index: int, workers: int):
        self._index = index
        self._workers = workers

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
        def summed(values: tf.Tensor) -> tf.Tensor:
            def all_reduce() -> tf.Tensor:
                own = tf.identity(values)  # on the worker's device, which an argument is not, and the all-reduce needs
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)

            return strategy.run(all_reduce)

        self._summed = summed

    def broadcast(self, content: bytes) -> bytes:
        """Return the content that worker 0 gave; that of the others does not count."""
        own = content if self._index == 0 else b""
        length = int(self._sum([len(own)])[0])
        return _bytes(self._sum(_words(own, length)), length)

    def gather(self, content: bytes) -> list[bytes]:
        """Return the content that each worker gave."""
        lengths = self._sum(self._mine(np.array([len(content)]))).tolist()
        rows = self._sum(self._mine(_words(content, max(lengths)))).reshape(self._workers, -1)
        return [_bytes(row, length) for row, length in zip(rows, lengths, strict=True)]

    def wait(self) -> None:
        """Wait until every worker waits here."""
        self._sum([0])

    def _mine(self, words: np.ndarray) -> np.ndarray:
        """Return a table with a row for each worker, flat: these words in its own row, zeros in the others."""
        table = np.zeros([self._workers, len(words)], np.int64)
        table[self._index] = words
        return table.reshape(-1)

    def _sum(self, values: np.ndarray | list[int]) -> np.ndarray:
        """Return the sums over all workers, int64 [k]. One that is nothing at all needs no all-reduce."""
        return self._summed(tf.constant(values, tf.int64)).numpy() if len(values) else np.zeros(0, np.int64)


def _words(content: bytes, length: int) -> np.ndarray:
    """Return bytes as whole int64, with zeros up to `length` bytes and a whole word."""
    return np.frombuffer(content.ljust(-(-length // _WORD_BYTES) * _WORD_BYTES, b"\0"), np.int64)


def _bytes(words: np.ndarray, length: int) -> bytes:
    return words.tobytes()[:length]
