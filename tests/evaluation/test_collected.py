"""Joining what is kept of batches."""

import numpy as np

from ps_cluster.evaluation.scorer import Collected


def batches(sizes):
    first = 0
    for size in sizes:
        ids = np.arange(first, first + size)
        yield first, {"id": ids.astype(np.int32), "pair": np.stack([ids, -ids], 1).astype(np.float32)}
        first += size


def test_batches_are_joined_in_order():
    kept = Collected(7)
    for first, batch in batches((3, 3, 1)):
        kept.put(first, batch)
    assert kept.arrays["id"].tolist() == list(range(7)) and kept.arrays["pair"][:, 1].tolist() == [-i for i in range(7)]


def test_nothing_is_kept_of_what_would_be_too_large():
    for most, names in ((7 * 12, {"id", "pair"}), (7 * 12 - 1, set())):
        kept = Collected(7, most_bytes=most)
        for first, batch in batches((3, 4)):
            kept.put(first, batch)
        assert set(kept.arrays) == names


def test_where_a_judge_keeps_nothing_there_is_nothing():
    kept = Collected(7)
    kept.put(0, {})
    assert kept.arrays == {}
