"""Join what is kept of batches of examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MOST_BYTES = 2**26  # of all examples; CIFAR-10's test images take 160 kB


class Collected:
    """Arrays over all examples of a split, filled batch by batch. Nothing is kept if they would take too much room."""

    def __init__(self, examples: int, most_bytes: int = MOST_BYTES):
        self._examples, self._most_bytes = examples, most_bytes
        self._arrays: dict[str, np.ndarray] | None = None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Name → [N, ...]; empty if there was nothing to keep, or if it would be too large."""
        return self._arrays or {}

    def put(self, first: int, batch: Mapping[str, Any]) -> None:
        """Take in the arrays or tensors of some examples: name → [B, ...]. `first`: the index of the first one."""
        if self._arrays is None:
            self._arrays = self._room_for(batch)
        for name, array in self._arrays.items():
            rows = np.asarray(batch[name])
            array[first : first + len(rows)] = rows

    def _room_for(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        rows = {name: np.asarray(part) for name, part in batch.items()}
        per_example = sum(part[:1].nbytes for part in rows.values())
        if per_example * self._examples > self._most_bytes:
            return {}
        return {name: np.zeros((self._examples, *part.shape[1:]), part.dtype) for name, part in rows.items()}
