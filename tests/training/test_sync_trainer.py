"""One update of the all-reduce with a single worker: the same graph, and a strategy of one device."""

import numpy as np
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.run.run_dir import IDENTITY
from ps_cluster.training.step import StepResult
from ps_cluster.training.sync_trainer import all_reduce_function, in_place_of
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
    assert not run(tf.constant(2), tf.constant(0.0, tf.float64))
    np.testing.assert_allclose(state_of(store)["statistics"], 1.5 * fresh, rtol=1e-6)


def test_a_loss_that_is_no_number_stays_in_the_row_of_its_worker():
    rows = np.array([[[1.0, np.nan], [2.0, np.inf]], [[3.0, 0.5], [4.0, 0.25]]])  # [workers, count, columns]
    summed = sum(in_place_of(tf.constant(worker), 2, tf.constant(own)).numpy() for worker, own in enumerate(rows))
    np.testing.assert_array_equal(summed, rows.swapaxes(0, 1))
