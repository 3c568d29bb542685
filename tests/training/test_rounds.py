"""Synchronous rounds, their workers threads of this process; the waiting is what a parameter server runs."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.training import ledger
from ps_cluster.training.coordinated import RoundSlice
from ps_cluster.training.ledger import WORKER_COLUMNS
from ps_cluster.training.waiting import sleep
from tests.helpers.stores import LENGTH, make_store, pull, row
from tests.helpers.waiting import identity, run_workers

START = np.linspace(-1, 1, LENGTH)


def round_step(store, end):
    """Takes part in one round with the gradient (worker + 1) w; returns the outcome and the version pulled."""
    (first,) = store.slices

    @tf.function(autograph=False)
    def run(info, wait):
        worker = tf.cast(info[WORKER_COLUMNS.index("worker")], tf.int64)
        pulled = store.pull(worker, [first.admit_to_round(worker, identity(end), [])])
        with tf.control_dependencies([pulled.weights]):
            slept = sleep(wait)

        def push():
            with tf.control_dependencies([slept]):
                step = pulled.versions[0] * 3 + worker
            gradient = pulled.weights * tf.cast(worker + 1, tf.float32)
            return store.push(step, pulled.versions, gradient, tf.ones_like(pulled.statistics), info)[0]

        return tf.cond(pulled.versions[0] < end, push, lambda: -1), pulled.versions[0]

    run.get_concrete_function(row(worker=0), tf.constant(0.0, tf.float64))  # or the first one traces alone

    def until_the_end(worker, seconds=0.0):
        while run(row(worker=worker), tf.constant(seconds, tf.float64))[1] < end:
            pass

    return until_the_end


def test_a_round_is_one_update_with_the_mean_of_all_gradients():
    store = make_store(kind=RoundSlice, training={"mode": "sync-ps"}, steps=10, rule="momentum", momentum=0.5)
    work = round_step(store, 10)
    run_workers(work)
    state = store.snapshot(30)
    assert state["counts"][0].tolist() == [10, 0, 0, 30]
    assert state["statistics"].tolist() == [10.0] * 3, "the mean of the workers' changes, not their sum"
    weights, velocity = START, np.zeros(LENGTH)
    for _ in range(10):
        velocity = 0.5 * velocity - 0.1 * 2 * weights  # (1 + 2 + 3) / 3 w
        weights = weights + velocity
    assert state["weights"] == pytest.approx(weights, rel=1e-5, abs=1e-7)
    rows = state["ledger"][0]
    assert ledger.column(rows, "version").tolist() == np.repeat(np.arange(1, 11), 3).tolist()
    assert not ledger.column(rows, "staleness").any()


def test_the_time_of_a_rounds_update_is_that_of_its_last_gradient():
    class SlowSlice(RoundSlice):
        def update(self, *args):
            with tf.control_dependencies([sleep(tf.constant(0.05, tf.float64))]):
                return super().update(*args)

    store = make_store(kind=SlowSlice, training={"mode": "sync-ps"}, steps=4, rule="sgd")
    run_workers(round_step(store, 4))
    rows = store.snapshot(12)["ledger"][0]
    seconds = ledger.column(rows, "applied_time") - ledger.column(rows, "entered_time")
    assert ((seconds.reshape(4, 3) >= 0.05).sum(axis=1) == 1).all()


def test_with_a_backup_worker_the_first_gradients_count_and_the_late_one_is_dropped():
    training = {"mode": "sync-ps", "backup_workers": 1}
    store = make_store(kind=RoundSlice, training=training, steps=10, rule="sgd")
    work = round_step(store, 10)
    run_workers(lambda worker: work(worker, seconds=0.05 if worker == 2 else 0.0))
    state = store.snapshot(30)
    version, _, dropped, accepted = state["counts"][0]
    assert (version, accepted) == (10, 20) and dropped > 0
    took_part = ledger.column(state["ledger"][0], "version").reshape(10, 3) > 0
    assert (took_part.sum(axis=1) == 2).all() and took_part[:, 2].sum() < 10, "two a round, and not always the slow one"
    means = took_part @ [1, 2, 3] / 2
    assert state["weights"] == pytest.approx(START * np.prod(1 - 0.1 * means), rel=1e-5)


def test_a_round_that_was_half_full_at_a_snapshot_goes_on_behind_it():
    made = [make_store(kind=RoundSlice, training={"mode": "sync-ps"}, steps=1, rule="sgd") for _ in range(2)]
    pulled = pull(made[0])
    ones = tf.ones(LENGTH)
    for worker in range(2):
        made[0].push(identity(worker), pulled.versions, ones, pulled.statistics, row(worker=worker))
    made[1].restore(made[0].snapshot(3))
    made[1].push(identity(2), pulled.versions, 4 * ones, pulled.statistics, row(worker=2))
    state = made[1].snapshot(3)
    assert state["counts"][0].tolist() == [1, 0, 0, 3]
    assert state["weights"] == pytest.approx(START - 0.1 * 2, rel=1e-5, abs=1e-7)
