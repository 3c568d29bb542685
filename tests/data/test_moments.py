"""Mean and standard deviation of rows, against numpy."""

import numpy as np
import pytest

from ps_cluster.config.objectives import ArrayField
from ps_cluster.data.moments import RunningStatistics


def statistics(array):
    """The mean and deviation that are kept of an input."""
    gathered = RunningStatistics(ArrayField(str(array.dtype), array.shape[1:]))
    for piece in np.array_split(array, 3):
        gathered.add(piece)
    return gathered.field


def test_statistics_are_those_of_the_training_examples_channel_by_channel():
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 6, 3), np.uint8)
    field = statistics(images)
    assert field.mean == pytest.approx(images.mean((0, 1, 2))) and field.std == pytest.approx(images.std((0, 1, 2)))
    assert statistics(np.arange(10)).mean == (), "a whole number may be a name"


def test_statistics_far_from_0_are_as_exact_and_a_constant_has_none():
    values = np.random.default_rng(0).normal(1e8, 1, 1000)
    assert statistics(values).std == pytest.approx((values.std(),), rel=1e-9)
    assert statistics(np.full((1000, 2), 1234.5, np.float32)).std == (0.0, 0.0)


def test_a_long_last_axis_is_no_row_of_channels():
    assert statistics(np.ones((3, 5000), np.float32)).mean == ()
