"""Rounds of the all-reduce with a single worker."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.training.all_reduce_graph import AllReduceUpdates, Request, RoundEnd
from ps_cluster.training.modes.sync import ReplicaShard
from ps_cluster.training.step import StepResult
from tests.helpers.stores import NO_EXAMPLES, Plain, make_store, state_of


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.array([0, 1], np.int64).tofile(IDENTITY)


def replica_of(workers, wire, fresh=(0, 0, 0), loss=0.0):
    """Return a store, and its updates, whose steps have a gradient of 0, these `fresh` and this loss."""
    values = {"mode.name": "sync", "cluster.workers": workers, "cluster.wire": wire}

    def compute(step, weights, statistics, limits):
        numbers = tf.constant(loss), tf.constant(0.0), tf.constant(0.0)
        return StepResult(tf.zeros_like(weights), tf.constant(fresh, tf.float32), *numbers, *NO_EXAMPLES)

    store = make_store(kind=ReplicaShard, keep=0.5, steps=2, wire=wire, values=values)
    strategy = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    return store, AllReduceUpdates(strategy, store, Plain(compute), build_config(overrides=values))


def test_statistics_keep_their_precision_where_gradients_travel_in_bfloat16():
    fresh = np.array([1.2345678, 1e-3, -77.7777], np.float32)
    store, run = replica_of(1, "bfloat16", fresh)
    assert run(2, Request.CONTINUE) == RoundEnd(Request.CONTINUE, [float(store.shards[0].digest())])
    np.testing.assert_allclose(state_of(store)["statistics"], 1.5 * fresh, rtol=1e-6)


def test_a_nan_loss_of_one_worker_does_not_spread_to_the_others():
    store, run = replica_of(2, "float32", loss=np.nan)
    _, digests = run(1, Request.CONTINUE)
    assert digests == [float(store.shards[0].digest()), 0.0], "each worker's in its own place"
    losses = store.read_ledgers([0]).rows[0]["loss"]
    assert np.isnan(losses[0]) and losses[1:].tolist() == [0.0], "the other one would add its own to this"


def test_every_request_of_worker_0_arrives_as_it_was_sent():
    _, run = replica_of(1, "float32")
    assert [run(1, request).request for request in Request] == list(Request)
