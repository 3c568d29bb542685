"""Names of hosts are looked up within a bound, although the system itself may wait much longer."""

import threading

import pytest

from ps_cluster.system.addresses import unknown_hosts


@pytest.fixture
def name_server():
    """A name server that does not know "unknown", and does not answer for names with "silent" before the test ends."""
    ended = threading.Event()

    def look_up(host):
        if "silent" in host:
            ended.wait(60)
        if host == "unknown":
            raise OSError(-2, "Name or service not known")

    yield look_up
    ended.set()


def test_a_host_whose_name_is_not_answered_for_counts_as_unknown_and_delays_no_other(name_server):
    addresses = ["silent:1", "known:1", "unknown:1", "known:2", "silent-too:1", "[::1]:1"]
    assert unknown_hosts(addresses, 1.0, name_server) == ["silent", "unknown", "silent-too"]


def test_more_hosts_than_are_asked_for_at_a_time_are_all_looked_up(name_server):
    assert unknown_hosts([f"known-{index}:1" for index in range(200)] + ["unknown:1"], 60, name_server) == ["unknown"]


def test_the_system_knows_this_machine_and_no_invalid_name():
    assert unknown_hosts(["127.0.0.1:1", f"{'a' * 70}.invalid:2"]) == [f"{'a' * 70}.invalid"]


def test_no_host_is_unknown_among_none():
    assert unknown_hosts([]) == []
