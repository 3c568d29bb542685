import pytest

from ps_cluster.tools.simulate.costs import Costs, Links, SimulatedCluster

NOTHING_BUT_COMPUTING = {
    "measured_on": "nothing", "processor": "Some EPYC", "parameters": 1000, "bytes_per_parameter": 4, "examples_per_step": 10,
    "steps_per_dispatch": 1, "compute_seconds": 1.0, "compute_cv": 0.0, "worker_cpu_seconds": 1.0,
    "pull_fixed_seconds": 0.0, "pull_seconds_per_parameter": 0.0, "push_fixed_seconds": 0.0,
    "apply_seconds_per_parameter": 0.0, "server_cv": 0.0, "pull_delay_seconds": 0.0, "push_delay_seconds": 0.0,
    "step_gap_seconds": 0.0, "dispatch_delay_seconds": 0.0, "chief_seconds": 0.0, "chief_background_cores": 0.0,
    "round_push_seconds": 0.0, "startup_cpu_seconds": 0.0,
}  # fmt: skip


@pytest.fixture
def costs():
    """Costs where all but a second of computing takes no time, with what is given in its place."""
    return lambda **given: Costs(**NOTHING_BUT_COMPUTING | given)


@pytest.fixture
def cluster():
    """Workers and servers on a network that takes no time, with what is given in its place."""

    def make(workers, servers=1, *, bytes_per_second=float("inf"), latency=0.0, **given):
        return SimulatedCluster(workers, servers, Links(bytes_per_second, latency), **given)

    return make
