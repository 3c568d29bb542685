import math

import pytest

from ps_cluster.config.dispatch_size import dispatch_size


@pytest.mark.parametrize(
    ("per_second", "size"), [(0.0, 4), (2.5, 4), (29.0, 14), (1000.0, 64)], ids=["unknown", "slow", "fast", "empty"]
)
def test_a_dispatch_takes_about_half_a_second(per_second, size):
    assert dispatch_size("auto", workers=3, per_second=per_second, left=math.inf) == size


def test_dispatches_grow_shorter_towards_the_end_and_never_empty():
    left, sizes = 40, []
    while left:
        sizes.append(dispatch_size("auto", workers=3, per_second=29.0, left=left))
        left -= sizes[-1]
    assert sizes == [14, 13, 6, 3, 2, 1, 1]


def test_a_number_that_was_asked_for_is_kept():
    assert dispatch_size(7, workers=3, per_second=29.0, left=3) == 7


def test_many_workers_get_longer_dispatches_so_that_the_chief_keeps_up():
    sizes = [dispatch_size("auto", workers=n, per_second=29.0, left=math.inf) for n in (100, 200, 10_000)]
    assert sizes == [14, 29, 64]
