"""A data set that the package knows nothing of: rows of numbers and a kind, and two numbers to predict."""

import numpy as np

from ps_cluster.config.datasets import Contents


def split(count, seed):
    draw = np.random.default_rng(seed)
    numbers, kind = draw.normal(3, 10, (count, 4)).astype(np.float32), draw.integers(0, 3, count)
    first = numbers @ np.array([1, 2, -1, 0.5], np.float32) + 5 * kind
    return {"numbers": numbers, "kind": kind, "target": np.stack([first, 100 - first], 1).astype(np.float32)}


def load():
    return Contents.of(split(2_000, 0), split(500, 1), objective="regression")
