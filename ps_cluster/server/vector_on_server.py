"""A vector of a snapshot whose rows of embedding tables stay on the parameter server until they are read, in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ps_cluster.config.lazy import tf


@dataclass(frozen=True)
class VectorOnServer:
    """A shard's vector at the version of a snapshot. Its copy on the server is freed together with this object.

    Attributes:
      dense: float32 [n], the numbers that are in no table.
      tables: the rows of each group of tables that continue the vector, float32 [rows, width], on the server; [0]: they are 0.
      sizes: the number of weights in each group.
      device: the name of the shard's device.
    """

    dense: np.ndarray
    tables: Sequence[tf.Tensor]
    sizes: Sequence[int]
    device: str

    def read(self, begin: int, end: int) -> np.ndarray:
        """Return the numbers from `begin` to `end`, float32. They must be dense, or whole rows of one group."""
        if end <= len(self.dense):
            return self.dense[begin:end]
        place = begin - len(self.dense)
        for rows, size in zip(self.tables, self.sizes, strict=True):
            if place < size:
                if rows.shape.rank == 1:
                    return np.zeros(end - begin, np.float32)
                width = rows.shape[1]
                with tf.device(self.device):
                    piece = rows[place // width : (place + end - begin) // width]
                return np.asarray(piece).reshape(-1)
            place -= size
        raise IndexError(f"{begin} to {end} of a vector of {len(self.dense) + sum(self.sizes)}")
