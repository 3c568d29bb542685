"""The speed of a training is that of the last seconds."""

import pytest

from ps_cluster.training.recent_speed import RATE_WINDOW_S, AppliedSoFar, RecentSpeed


def test_the_speed_is_unknown_until_the_second_look():
    speed = RecentSpeed()
    assert (speed.updates_per_second, speed.examples_per_second) == (0, 0)
    speed.add(AppliedSoFar(50.0, 7, 70))
    assert (speed.updates_per_second, speed.examples_per_second) == (0, 0)
    speed.add(AppliedSoFar(52.0, 8, 80))
    assert (speed.updates_per_second, speed.examples_per_second) == (0.5, 5)


def test_the_speed_is_that_of_the_last_seconds():
    speed = RecentSpeed()
    for second in range(20):
        speed.add(AppliedSoFar(second, second, 10 * second))
    assert (speed.updates_per_second, speed.examples_per_second) == (1, 10)
    speed.add(AppliedSoFar(19 + RATE_WINDOW_S - 1, 19, 190))
    assert speed.updates_per_second == pytest.approx(1 / RATE_WINDOW_S)
    assert speed.examples_per_second == pytest.approx(10 / RATE_WINDOW_S)


def test_after_a_long_time_without_a_look_the_speed_is_unknown_again():
    speed = RecentSpeed()
    for second in (0.0, 1.0, 2 + RATE_WINDOW_S):
        speed.add(AppliedSoFar(second, int(second), 0))
    assert speed.updates_per_second == 0
