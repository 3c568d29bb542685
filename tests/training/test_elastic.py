import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.training.elastic import ElasticSlice, LocalSteps
from ps_cluster.training.step import StepResult
from tests.helpers.stores import LENGTH, make_store, pull, row, state_of

SETTINGS = {"mode": "elastic"}


def test_exchanges_move_worker_and_centre_towards_each_other_as_in_numpy():
    store = make_store(kind=ElasticSlice, training=SETTINGS, rule="sgd")
    centre = np.linspace(-1, 1, LENGTH)
    own = np.stack([centre] * 3)
    rng = np.random.default_rng(0)
    for step, worker in enumerate([0, 1, 0, 2, 2, 1, 0]):
        moved = rng.normal(size=LENGTH)
        pulled = pull(store, worker)
        assert pulled.weights.numpy() == pytest.approx(own[worker], rel=1e-5, abs=1e-6)
        store.push(
            tf.constant(step, tf.int64),
            pulled.versions,
            tf.constant(moved, tf.float32),
            pulled.statistics,
            row(worker=worker),
        )
        own[worker] += moved
        force = 0.3 * (own[worker] - centre)
        own[worker] -= force
        centre = centre + force
    state = state_of(store)
    assert state["weights"] == pytest.approx(centre, rel=1e-5, abs=1e-6)
    assert state["slot_own"] == pytest.approx(own, rel=1e-5, abs=1e-6)


def test_a_restored_store_has_every_workers_weights_again_on_two_slices():
    made = [make_store(2, kind=ElasticSlice, training=SETTINGS, rule="sgd") for _ in range(2)]
    pulled = pull(made[0], 1)
    made[0].push(tf.constant(0, tf.int64), pulled.versions, tf.ones(LENGTH), pulled.statistics, row(worker=1))
    made[1].restore(state_of(made[0]))
    for worker in range(3):
        assert (pull(made[1], worker).weights.numpy() == pull(made[0], worker).weights.numpy()).all()


def test_local_steps_are_plain_sgd_on_consecutive_batches():
    config = build_config(
        overrides={
            "training.mode": "elastic",
            "optimizer.rule": "sgd",
            "elastic.local_steps": 3,
            "optimizer.weight_decay": 0.5,
        }
    )
    factors = np.array([1, 2, 0], np.float32)

    def step(step_id, weights, statistics):
        number = tf.cast(step_id, tf.float32)
        return StepResult(weights * number, tf.ones_like(statistics), number, number + 1, tf.constant(0.1))

    local = LocalSteps(step, config, factors)
    start = np.array([1.0, -2.0, 3.0])
    result = tf.function(lambda *given: vars(local(*given)), autograph=False)(
        tf.constant(2, tf.int64), tf.constant(start, tf.float32), tf.zeros([2])
    )
    weights = start
    for batch in (6, 7, 8):  # the batches of exchange 2
        weights = weights - 0.1 * (factors * batch * weights + 0.5 * (factors != 0) * weights)
    assert result["gradient"].numpy() == pytest.approx(weights - start, rel=1e-5)
    assert result["statistics_delta"].numpy().tolist() == [3.0, 3.0]
    assert (float(result["loss"]), float(result["correct"])) == (7.0, 7 + 8 + 9)
