"""Choose the positions at which large vectors of a sampled update are kept. Small vectors are kept completely."""

from __future__ import annotations

from collections.abc import Sequence

from ps_cluster.config.equations import Matrix
from ps_cluster.config.lazy import tf
from ps_cluster.runs.update_samples import LARGEST_MATRIX

WHOLE_UP_TO = 32_768  # vectors with at most this many weights are kept completely


class SamplePositions:
    """The positions at which a sample keeps the vectors of a shard. A random number selects one of several sets.

    Each set has the same size, and each position is in at least one set. Most rules update each weight independently.
    For such a rule, the positions of a set are evenly spaced. For a rule that needs whole matrices, a set is a range of
    consecutive positions, and each matrix is completely in at least one of the ranges. Matrices with more than
    `LARGEST_MATRIX` weights are an exception, because a sample of one would be too large.

    Attributes:
      count: the number of positions in a set.
    """

    def __init__(self, length: int, matrices: Sequence[Matrix], vectors: int):
        """Compute the size of the sets.

        Args:
          length: the number of weights of the shard.
          matrices: the positions of the matrices that the rule needs as a whole.
          vectors: the number of vectors that a sample keeps. If vectors are not kept completely, the kept parts of all
            vectors together take about as much memory as one whole vector.
        """
        self._length = length
        self.count = length if length <= WHOLE_UP_TO else length // vectors
        self._stride = max(1, length // max(1, self.count))
        self._begins: Sequence[int] = range(max(1, length))
        if matrices := [one for one in matrices if one.size <= LARGEST_MATRIX]:
            self._stride, self.count = 1, max(self.count, *(one.size for one in matrices))
            begins = {*range(0, length, self.count), *(one.begin for one in matrices)}
            self._begins = sorted({min(begin, length - self.count) for begin in begins})

    def first(self, number: int) -> int:
        """Return the first position of the set that a random number selects."""
        return self._begins[number % len(self._begins)]

    def beginning_at(self, first: tf.Tensor) -> tf.Tensor:
        """Return the positions of the set whose first position is `first` (int64 []), int64 [count]."""
        return (first + self._stride * tf.range(self.count, dtype=tf.int64)) % max(1, self._length)
