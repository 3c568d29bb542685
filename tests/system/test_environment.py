"""The environment variables that a task gets, beside those of whoever starts it."""

import pytest

from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.system import environment

CLUSTER = {"chief": ["head.example:1"], "ps": ["[::1]:2"], "worker": ["10.0.0.1:3", "10.0.0.1:4"]}
HOSTS = "head.example,::1,10.0.0.1"


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({}, HOSTS),
        ({"http_proxy": "http://proxy:8080"}, HOSTS),
        ({"no_proxy": "intra.example, 10.0.0.1"}, f"intra.example,10.0.0.1,{HOSTS.removesuffix(',10.0.0.1')}"),
        ({"no_proxy": "intra.example", "no_grpc_proxy": "calls.example"}, f"calls.example,{HOSTS}"),
        ({"no_grpc_proxy": ""}, HOSTS),
    ],
)
def test_connections_to_all_hosts_of_the_cluster_are_direct_and_other_programs_keep_their_proxy(given, direct):
    changed = environment.past_proxies(given, ClusterTopology(CLUSTER).hosts)
    assert changed == given | {"no_grpc_proxy": direct}
