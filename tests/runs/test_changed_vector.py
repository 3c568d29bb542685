"""A vector is the same whether it is saved whole, or as what has changed since a full state."""

import numpy as np
import pytest

from ps_cluster.files.values import Malformed
from ps_cluster.runs.changed_vector import ChangedVector, ranges_of

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("count", [0, 1, 5, 30])
def test_every_slice_of_a_changed_vector_is_that_of_the_whole_one(count):
    full = np.arange(100, dtype=np.float32)
    rows = 3 * DRAW.choice(33, count, replace=False)  # rows of 3 numbers, in any order
    whole = full.copy()
    for row in rows:
        whole[row : row + 3] = -1 - whole[row : row + 3]
    ranges = ranges_of(rows, 3)
    assert (ranges[1:, 0] > ranges[:-1, 1]).all(), "rows that follow each other are one range"
    found = ChangedVector(full, ranges, whole[whole < 0])
    assert found.shape == (100,) and (found[:] == whole).all()
    for begin in range(0, 101, 7):
        for end in range(begin, 101, 5):
            assert found[begin:end].tolist() == whole[begin:end].tolist()
    assert full.min() == 0, "the full state is not written to"


@pytest.mark.parametrize("ranges", [[[0, 3]], [[0, 2], [1, 1]], [[2, 0], [2, 6]], [[9, 11]], [[-1, 1]], [[0, 1, 2]]])
def test_ranges_that_contradict_the_vector_are_refused(ranges):
    with pytest.raises(Malformed, match="ranges of changed numbers"):
        ChangedVector(np.zeros(10, np.float32), np.array(ranges), np.zeros(2, np.float32))
