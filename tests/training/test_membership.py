"""Workers that are gone are waited for one by one; TensorFlow's own handler would wait for all."""

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import tensorflow as tf

from ps_cluster.training import membership
from ps_cluster.training.membership import Membership
from tests.helpers.fake_time import FakeTime
from tests.helpers.processes import wait_until

PROJECT = Path(__file__).parents[2]
until = partial(wait_until, within_s=10, every_s=0.005)
GONE = tf.errors.UnavailableError(None, None, "Socket closed: /job:worker/replica:0/task:1")
UNKNOWN = tf.errors.InvalidArgumentError(None, None, "/job:worker/replica:0/task:1/device:CPU:0 unknown device.")
FROM_PS = "Graph execution error: GRPC error information from remote target /job:ps/replica:0/task:0 /job:worker"
PS_GONE = tf.errors.UnavailableError(None, None, FROM_PS)
CANCELLED = tf.errors.CancelledError(None, None, "/job:worker")
WRONG = tf.errors.InvalidArgumentError(None, None, "shapes differ")


@pytest.fixture
def members(monkeypatch):
    """Members 0 and 1 of 3; `members.up` are the addresses that work.

    `members.updates` are the memberships set. `members.looks` are the sets of workers that were looked at.
    """
    monkeypatch.setattr(membership, "POLL_INTERVAL_S", 0.01)
    up, updates, said, unwelcome, cut, time_ = {"a:0", "a:1"}, [], [], {}, [], FakeTime()
    looks = []

    def reach(addresses):
        looks.append(set(addresses))
        return {key for key, address in addresses.items() if address in up}

    monkeypatch.setattr(membership, "update_members", lambda workers, _: updates.append(sorted(workers)))
    one = Membership(
        {index: f"a:{index}" for index in range(3)}, {0, 1}, lambda task: unwelcome.get(task.index),
        reach=reach, notify=said.append,
        lost_after_s=60, disconnect=cut.append, clock=time_.clock,
    )  # fmt: skip
    one.up, one.updates, one.said, one.unwelcome, one.were_cut, one.time = up, updates, said, unwelcome, cut, time_
    one.looks = looks
    yield one
    one.stop()


def fail(members, worker, error):
    """Let a dispatch of a worker fail; return what TensorFlow was told to do with it, in order, and the thread."""
    calls = []

    def body():
        with members.wait_on_failure(
            lambda error: calls.append("failed"), lambda: calls.append("again"), lambda: calls.append("recovered"),
            f"/job:worker/replica:0/task:{worker}",
        ):  # fmt: skip
            raise error

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return calls, thread


def passes(members, seconds):
    """Let so many seconds pass; a worker that waits to come looks every ten."""
    for members.time.now_s in (*range(0, seconds, 10), seconds):
        until(lambda: members._polled_s == members.time.now_s)


@pytest.mark.parametrize("error", [GONE, UNKNOWN])
def test_a_worker_that_is_gone_takes_part_again_once_its_server_works(members, error):
    members.up.discard("a:1")
    calls, thread = fail(members, 1, error)
    until(lambda: calls == ["failed"] and members.present == {0})
    members.up.add("a:1")
    thread.join(10)
    assert calls == ["failed", "recovered"] and members.present == {0, 1} and members.updates == [[0, 1]]


def test_a_worker_that_never_comes_back_keeps_nobody_else_away(members):
    members.up.clear()
    lost, _ = fail(members, 0, GONE)
    back, thread = fail(members, 1, GONE)
    until(lambda: members.present == set())
    members.up.add("a:1")
    thread.join(10)
    assert (lost, back) == (["failed"], ["failed", "recovered"]) and members.present == {1}


def test_a_worker_at_an_address_where_nobody_was_takes_part(members):
    _, thread = fail(members, 2, UNKNOWN)
    members.up.add("a:2")
    thread.join(10)
    assert members.present == {0, 1, 2} and members.updates == [[0, 1, 2]]


def test_nobody_is_taken_in_while_a_member_is_silent_because_tensorflow_would_wait_for_it(members):
    members.up.discard("a:0")
    members.up.add("a:2")
    _, thread = fail(members, 2, UNKNOWN)
    # Each look at the member that is silent follows one at the worker that wants to join, which works.
    until(lambda: members.looks.count({0, 1}) >= 5 or members.updates)
    assert not members.updates
    members.up.add("a:0")
    thread.join(10)
    assert members.updates == [[0, 1, 2]]


def test_the_connections_to_a_member_that_stays_silent_are_cut_and_others_are_taken_in_once_its_dispatch_has_failed(
    members,
):
    members.up.discard("a:0")
    members.up.add("a:2")
    _, thread = fail(members, 2, UNKNOWN)
    passes(members, 59)
    assert not members.were_cut
    members.time.now_s = 60.0
    until(lambda: members.were_cut == ["a:0"])
    fail(members, 0, GONE)
    thread.join(10)
    assert members.present == {1, 2} and members.updates == [[1, 2]] and members.were_cut == ["a:0"]


def test_a_member_that_answers_between_is_not_silent_for_long(members):
    members.up.discard("a:0")
    members.up.add("a:2")
    members.unwelcome[2] = "it differs"
    fail(members, 2, UNKNOWN)
    passes(members, 30)
    members.up.add("a:0")
    until(lambda: members.updates)
    members.up.discard("a:0")
    until(lambda: members._silent_since)
    for members.time.now_s in range(30, 90, 10):
        until(lambda: members._polled_s == members.time.now_s)
    assert not members.were_cut


def test_a_worker_that_differs_stays_out_and_is_named_once(members):
    members.unwelcome[2] = "training.seed: 0 here, 1 at worker-2"
    counted = []
    members._reason_to_refuse = lambda task: (counted.append(2 in members.present), members.unwelcome.get(2))[1]
    members.up.add("a:2")
    calls, thread = fail(members, 2, UNKNOWN)
    until(lambda: len(members.updates) > 2)
    assert members.present == {0, 1} and calls == ["failed"]
    assert not any(counted), "the chief does not count it while it is asked"
    assert sum("training.seed" in line for line in members.said) == 1
    members.unwelcome.clear()
    thread.join(10)
    assert members.present == {0, 1, 2}


@pytest.mark.parametrize("error", [PS_GONE, CANCELLED])
def test_a_dispatch_that_lost_a_parameter_server_is_tried_again_and_its_worker_stays(members, error, monkeypatch):
    monkeypatch.setattr(membership, "_RETRY_S", 0.0)
    calls, thread = fail(members, 1, error)
    thread.join(10)
    assert calls == ["again"] and members.present == {0, 1}


def test_a_mistake_in_the_graph_is_raised(members):
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="shapes differ"),
        members.wait_on_failure(worker_device_name="/job:worker/replica:0/task:1"),
    ):
        raise WRONG


def test_at_the_end_nobody_is_waited_for(members):
    members.up.clear()
    _, thread = fail(members, 1, GONE)
    members.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_member_whose_name_is_not_known_any_more_ends_nothing(members):
    def unknown(address):
        raise OSError(-2, "Name or service not known")

    members._disconnect = unknown
    members.up.discard("a:0")
    members.up.add("a:2")
    _, thread = fail(members, 2, UNKNOWN)
    passes(members, 60)
    until(lambda: "the connections to worker-0 can't be cut: Name or service not known" in members.said)
    members.up.add("a:0")
    thread.join(10)
    assert members.present == {0, 1, 2}


def test_a_member_that_falls_silent_while_another_is_taken_in_is_cut_off_too(members, monkeypatch):
    """TensorFlow waits for it, until its connections are cut."""
    cut = threading.Event()
    members._disconnect = lambda address: (members.were_cut.append(address), cut.set())
    members._lost_after_s = 0.05

    def update(workers, _):
        members.up.discard("a:1")
        if not cut.wait(10):
            raise AssertionError("nobody was cut")

    monkeypatch.setattr(membership, "update_members", update)
    members.up.add("a:2")
    _, thread = fail(members, 2, UNKNOWN)
    thread.join(10)
    assert members.were_cut == ["a:1"] and 2 in members.present


@pytest.mark.slow
def test_servers_without_a_launcher_keep_what_a_leader_made_for_a_shorter_time():
    """In a process of its own, whose first connection it is."""
    code = """
from ps_cluster.quiet_import import import_tensorflow
import_tensorflow()
from tensorflow.python.eager import context
import tensorflow as tf
from ps_cluster.private_names import PartlyConnectedStrategy
def connect(handle, keep_s, *rest):
    print(keep_s, flush=True)
    raise SystemExit
context.pywrap_tfe.TFE_ContextSetServerDefWithTimeoutAndRetries = connect
spec = tf.train.ClusterSpec({"chief": ["a:1"], "ps": ["b:1"], "worker": {0: "c:1"}})
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc", task_type="chief", task_id=0)
PartlyConnectedStrategy(resolver, all_workers=1, keep_s=120)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["120"], ended.stderr[-1000:]
