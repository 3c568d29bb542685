"""One update of the all-reduce with a single worker; what workers tell each other; a wait for others that is ended."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.training.all_reduce import RoundWatch, WorkerGroup, all_reduce_function
from ps_cluster.training.modes.sync import ReplicaShard
from ps_cluster.training.step import StepResult
from tests.helpers.stores import NO_EXAMPLES, Plain, make_store, state_of


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.array([0, 1], np.int64).tofile(IDENTITY)


def replica_of(workers, wire, fresh=(0, 0, 0), loss=0.0):
    """Return a store, and the graph of its updates, whose steps have a gradient of 0, these `fresh` and this loss."""
    values = {"mode.name": "sync", "cluster.workers": workers, "cluster.wire": wire}

    def compute(step, weights, statistics, limits):
        numbers = tf.constant(loss), tf.constant(0.0), tf.constant(0.0)
        return StepResult(tf.zeros_like(weights), tf.constant(fresh, tf.float32), *numbers, *NO_EXAMPLES)

    store = make_store(kind=ReplicaShard, keep=0.5, steps=2, wire=wire, values=values)
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    return store, all_reduce_function(strategy, store, Plain(compute), build_config(overrides=values))


def test_statistics_keep_their_precision_where_gradients_travel_in_bfloat16():
    fresh = np.array([1.2345678, 1e-3, -77.7777], np.float32)
    store, run = replica_of(1, "bfloat16", fresh)
    stop, digest = run(tf.constant(2), tf.constant(0.0, tf.float64)).numpy()
    assert stop == 0.0 and digest == store.shards[0].digest()
    np.testing.assert_allclose(state_of(store)["statistics"], 1.5 * fresh, rtol=1e-6)


def test_a_nan_loss_of_one_worker_does_not_spread_to_the_others():
    store, run = replica_of(2, "float32", loss=np.nan)
    stop, *digests = run(tf.constant(1), tf.constant(1.0, tf.float64)).numpy().tolist()
    assert stop == 1.0 and digests == [store.shards[0].digest(), 0.0], "each worker's in its own place"
    losses = store.read_ledgers([0]).rows[0]["loss"]
    assert np.isnan(losses[0]) and losses[1:].tolist() == [0.0], "the other one would add its own to this"


@pytest.mark.parametrize("content", [b"", b"\0\xff" * 1000 + b"\0"])
def test_what_is_told_comes_back_byte_for_byte(content):
    alone = WorkerGroup(tf.distribute.OneDeviceStrategy("/device:CPU:0"), 0, 1)
    assert alone.broadcast(content) == content
    assert alone.gather(content) == [content]


def test_a_round_that_takes_too_long_is_given_up():
    given_up = threading.Event()
    with RoundWatch(0.05, lambda limit_s: given_up.set()):
        assert given_up.wait(5)


def test_rounds_that_end_in_time_are_not_given_up_however_long_all_of_them_take():
    seconds, given_up = [0.0], []
    with RoundWatch(0.01, lambda limit_s: given_up.append(seconds[0]), clock=lambda: seconds[0]) as watch:
        for _ in range(20):
            seconds[0] += 0.009
            time.sleep(0.002)
            watch.moved(0.01)
    assert not given_up


def test_nothing_is_given_up_after_the_last_round():
    seconds, given_up = [0.0], []
    with RoundWatch(0.01, lambda limit_s: given_up.append(True), clock=lambda: seconds[0]):
        pass
    seconds[0] = 1.0
    time.sleep(0.02)
    assert not given_up
