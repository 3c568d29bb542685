"""Draw random numbers: seconds from gamma distributions, and the waits of slow workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import overload

import numpy as np

from ps_cluster.config.stragglers import TASK_VARIATION, Stragglers, machine_means

_NUMBERS_AT_ONCE = 1 << 14


def gamma(random: np.random.Generator, mean: float, variation: float, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return gamma-distributed numbers, float64 `shape`, with this mean and coefficient of variation, which may be 0.

    Ali et al. 2000 draw task times this way. Hakimi et al. 2019 (arXiv:1907.11612) draw the step times of asynchronous
    training this way.
    """
    if variation == 0 or mean == 0:
        return np.full(shape, mean)
    return random.gamma(variation**-2, mean * variation**2, size=shape)


@overload
def gammas(random: np.random.Generator, mean: float, variation: float) -> Iterator[float]: ...
@overload
def gammas(random: np.random.Generator, mean: float, variation: float, width: int) -> Iterator[np.ndarray]: ...
def gammas(
    random: np.random.Generator, mean: float, variation: float, width: int | None = None
) -> Iterator[float] | Iterator[np.ndarray]:
    """Yield gamma-distributed floats or, with `width`, arrays, float64 [width], without end.

    The numbers are drawn in large blocks, which is faster than one by one.
    """
    rows = max(1, _NUMBERS_AT_ONCE // (width or 1))
    while True:
        block = gamma(random, mean, variation, (rows,) if width is None else (rows, width))
        yield from block.tolist() if width is None else block


class Slow:
    """Draws how long slow workers wait after a computation. With `--straggler`, real workers wait in the same way."""

    def __init__(self, stragglers: Stragglers, workers: int, random: np.random.Generator, seed: int):
        self._stragglers = stragglers
        self._random = random
        self._factors = machine_means(workers, seed) if stragglers.gamma else np.ones(workers)
        self._extras = np.zeros(workers)
        for slow in stragglers.slow:
            self._factors[slow.worker], self._extras[slow.worker] = slow.factor, slow.extra_s

    @overload
    def seconds(self, worker: int, own_seconds: float) -> float: ...
    @overload
    def seconds(self, worker: slice, own_seconds: np.ndarray) -> np.ndarray: ...
    def seconds(self, worker: int | slice, own_seconds: float | np.ndarray) -> float | np.ndarray:
        """Return how many seconds a worker waits after a computation of `own_seconds`.

        For a slice of workers, `own_seconds` and the result are float64 [workers].
        """
        if not self._stragglers:
            return 0.0 * own_seconds
        variation = gamma(self._random, 1.0, TASK_VARIATION if self._stragglers.gamma else 0.0, np.shape(own_seconds))
        slow = np.maximum(0.0, self._factors[worker] * variation - 1) * own_seconds
        waits: float | np.ndarray = slow + self._extras[worker]
        return waits
