"""One update of the all-reduce with a single worker: the same graph, and a strategy of one device."""

import numpy as np
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.runs.run_dir import IDENTITY
from ps_cluster.training.all_reduce import all_reduce_function
from ps_cluster.training.step import StepResult
from tests.helpers.stores import make_store, state_of


def test_statistics_keep_their_precision_where_gradients_travel_in_bfloat16(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / IDENTITY).write_bytes(np.array([0, 1], np.int64).tobytes())
    values = {"mode.name": "sync", "cluster.workers": 1, "cluster.wire": "bfloat16"}
    fresh = np.array([1.2345678, 1e-3, -77.7777], np.float32)

    def compute(step, weights, statistics):
        nothing = tf.constant(0.0)
        return StepResult(
            tf.zeros_like(weights), tf.constant(fresh), loss=nothing, metric=nothing, learning_rate=nothing
        )

    store = make_store(keep=0.5, steps=2, wire="bfloat16", values=values)
    run = all_reduce_function(
        tf.distribute.OneDeviceStrategy("/device:CPU:0"), store, compute, build_config(overrides=values)
    )
    stop, digest = run(tf.constant(2), tf.constant(0.0, tf.float64)).numpy()
    assert stop == 0.0 and digest == store.slices[0].digest()
    np.testing.assert_allclose(state_of(store)["statistics"], 1.5 * fresh, rtol=1e-6)


def test_a_loss_that_is_no_number_is_that_of_its_own_worker_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / IDENTITY).write_bytes(np.array([0, 1], np.int64).tobytes())
    values = {"mode.name": "sync", "cluster.workers": 2}

    def compute(step, weights, statistics):
        none = tf.constant(0.0)
        loss = tf.constant(np.nan, tf.float32)
        return StepResult(tf.zeros_like(weights), tf.zeros_like(statistics), loss=loss, metric=none, learning_rate=none)

    store = make_store(steps=2, values=values)
    config = build_config(overrides=values | {"cluster.wire": "float32"})
    run = all_reduce_function(tf.distribute.OneDeviceStrategy("/device:CPU:0"), store, compute, config)
    stop, *digests = run(tf.constant(1), tf.constant(1.0, tf.float64)).numpy().tolist()
    assert stop == 1.0 and digests == [store.slices[0].digest(), 0.0], "each worker's in its own place"
    losses = store.read_ledgers([0]).rows[0]["loss"]
    assert np.isnan(losses[0]) and losses[1:].tolist() == [0.0], "the other one would add its own to this"
