"""A chief waits for those it needs, says for whom, and does not wait for ever."""

import signal

import pytest

from ps_cluster.launch.keeper import RendezvousLimits, gathered
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.system.environment import StopRequests
from tests.helpers.fake_time import FakeTime

TOPOLOGY = ClusterTopology({"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4", "e:5"]})


@pytest.fixture
def gather():
    """gather(patience, {address: second}) → the workers to begin with, when servers come at these seconds."""
    time, requests = FakeTime(), StopRequests()

    def call(patience, comes):
        def reach(addresses):
            return {task for task, address in addresses.items() if comes.get(address, 1e9) <= time.now_s}

        return gathered(TOPOLOGY, patience, requests, call.said.append, reach=reach, clock=time.clock, sleep=time.sleep)

    call.said, call.time, call.requests = [], time, requests
    return call


def test_the_chief_begins_when_all_are_there_whatever_the_order(gather):
    assert gather(RendezvousLimits(600), {"e:5": 0, "d:4": 3, "c:3": 5, "b:2": 7}) == 3
    assert 7 <= gather.time.now_s < 9
    assert gather.said[0] == "waiting for ps-0 (b:2), worker-0 (c:3), worker-1 (d:4) (0 of 600 s)"
    assert gather.said[-1] == "all other tasks answer"


def test_every_ten_seconds_it_says_for_whom_it_waits_until_the_bound(gather):
    assert gather(RendezvousLimits(35), {"c:3": 0, "d:4": 0, "e:5": 0}) is None
    waits = [line for line in gather.said if line.startswith("waiting for ps-0 (b:2) (")]
    assert len(waits) == 4, "at 0, 10, 20 and 30 s"
    assert gather.said[-1] == "ps-0 (b:2) did not answer for 35 s" and gather.time.now_s < 37


def test_a_worker_that_does_not_come_back_is_waited_for_a_minute(gather):
    assert gather(RendezvousLimits(600), {"b:2": 0, "c:3": 10, "d:4": 0}) == 2
    assert 60 <= gather.time.now_s < 63
    assert gather.said[-1] == "beginning with 2 of 3 workers; worker-2 (e:5) may come later"


def test_as_many_as_were_asked_for_are_enough_at_once(gather):
    assert gather(RendezvousLimits(600, least_workers=2), {"b:2": 4, "c:3": 0, "d:4": 6}) == 2
    assert gather.time.now_s < 8


def test_without_a_parameter_server_nothing_begins(gather):
    assert gather(RendezvousLimits(100, least_workers=1), {"c:3": 0, "d:4": 0, "e:5": 0}) is None


def test_a_mode_that_needs_all_waits_for_all(gather):
    assert gather(RendezvousLimits(100, needs_all=True), {"b:2": 0, "c:3": 0, "d:4": 0}) is None


def test_a_stop_signal_ends_the_wait_at_once(gather):
    gather.time.at(12.0, lambda: gather.requests._note(signal.SIGTERM, None))
    assert gather(RendezvousLimits(600), {}) is None
    assert gather.time.now_s < 13
