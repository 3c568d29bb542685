import pytest

from ps_cluster.simulation import ring
from ps_cluster.simulation.prediction import predict
from ps_cluster.training.straggler_config import parse_stragglers


def test_a_ring_sends_almost_twice_the_gradient_in_twice_as_many_turns_as_there_are_others(costs, cluster):
    ten = cluster(10, bytes_per_second=1e4, latency=0.01, mode="sync")
    assert ring.all_reduce_seconds(costs(), 10, ten.network) == pytest.approx(2 * 9 / 10 * 0.4 + 2 * 9 * 0.01)
    assert ring.all_reduce_seconds(costs(), 1, ten.network) == 0


def test_an_update_waits_for_the_slowest_worker(costs, cluster):
    found = predict(costs(), cluster(10, mode="sync", stragglers=parse_stragglers("3:4x")))
    assert found.images_per_second == pytest.approx(10 * 10 / 4)
    assert found.efficiency == pytest.approx(1 / 4) and found.parameter_servers is None
    assert found.utilisation["worker"] == pytest.approx(1 / 4)
