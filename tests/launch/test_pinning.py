import pytest

from ps_cluster.config import build_config
from ps_cluster.launch.pinning import cores_of


def cores_of_all(workers, cores, usable=None, **settings):
    config = build_config(None, {"cluster.workers": workers} | settings)
    return [list(cores_of(worker, config, cores, usable=usable or len(cores))) for worker in range(workers)]


def test_several_workers_share_a_core_where_there_are_more_of_them():
    assert cores_of_all(3, [0, 1]) == [[0], [1], [0]]
    assert cores_of_all(3, [5]) == [[5], [5], [5]]


def test_each_worker_has_an_equal_part_where_there_are_enough_cores_and_what_is_over_is_free():
    assert cores_of_all(2, [0, 1]) == [[0], [1]]
    assert cores_of_all(3, [2, 3, 4, 5, 6, 7, 8]) == [[2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("settings", [{"mode.name": "sync-ps"}, {"cluster.pin_workers": False}])
def test_all_workers_use_all_cores_where_they_wait_for_each_other_or_are_not_pinned(settings):
    assert cores_of_all(3, [0, 1], **settings) == [[0, 1]] * 3


def test_every_mode_can_be_told_to_pin_its_workers():
    assert cores_of_all(3, [0, 1], **{"mode.name": "sync", "cluster.pin_workers": True}) == [[0], [1], [0]]


def test_nobody_is_pinned_where_a_quota_allows_less_than_the_cores_that_are_seen():
    assert cores_of_all(2, [0, 1, 2, 3], usable=2) == [[0, 1, 2, 3]] * 2
    assert cores_of_all(2, [0, 1, 2, 3], usable=4) == [[0, 1], [2, 3]]
