import pytest

from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.tools.simulate.prediction import predict


def test_a_ring_sends_almost_twice_the_gradient_in_twice_as_many_turns_as_there_are_others(costs, cluster):
    found, alone = (
        predict(costs(), cluster(workers, bytes_per_second=1e4, latency=0.01, mode="sync")) for workers in (10, 1)
    )
    seconds = 10 * 10 / found.examples_per_second
    phases = {phase: seconds * share for phase, share in found.utilisation.items()}
    assert phases == pytest.approx({"worker": 1, "link": 2 * 9 / 10 * 0.4, "latency": 2 * 9 * 0.01, "update": 0})
    assert alone.utilisation == {"worker": 1, "link": 0, "latency": 0, "update": 0}


def test_an_update_waits_for_the_slowest_worker(costs, cluster):
    found = predict(costs(), cluster(10, mode="sync", stragglers=parse_stragglers("3:4x")))
    assert found.examples_per_second == pytest.approx(10 * 10 / 4)
    assert found.efficiency == pytest.approx(1 / 4) and found.parameter_servers is None
