"""Workers that wait for each other, as threads of this process; the waiting is what a parameter server runs."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.training import coordinated
from ps_cluster.training.coordinated import BoundedSlice, RoundSlice
from ps_cluster.training.ledger import WORKER_COLUMNS
from ps_cluster.training.slice import APPLIED, DROPPED
from ps_cluster.training.waiting import sleep
from tests.helpers.stores import LENGTH, ledger_of, make_store, pull, row, state_of

START = np.linspace(-1, 1, LENGTH)


def run_workers(work, workers=3):
    together = threading.Barrier(workers)

    def start(worker):
        together.wait(60)
        work(worker)

    threads = [threading.Thread(target=start, args=(worker,), daemon=True) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a worker waits for ever"


def identity(number):
    return tf.constant(number, tf.int64)


def bounded_step(store, seconds):
    """A step that takes its worker `seconds` (a function of the worker): the gradient of |w|^2 / 2."""
    first = store.slices[0]

    @tf.function(autograph=False)
    def run(step, info, wait):
        worker = tf.cast(info[WORKER_COLUMNS.index("worker")], tf.int64)
        with tf.control_dependencies(first.admit(worker)):
            pulled = store.pull(worker)
        with tf.control_dependencies([pulled.weights]):
            slept = sleep(wait)
        with tf.control_dependencies([slept]):
            return store.push(step, pulled.versions, tf.identity(pulled.weights), pulled.statistics, info)[0]

    run.get_concrete_function(identity(0), row(worker=0), tf.constant(0.0, tf.float64))  # or the first one traces alone

    def until_taken(step, worker):
        while run(identity(step), row(worker=worker), tf.constant(seconds(worker), tf.float64)) == DROPPED:
            pass

    return until_taken


@pytest.mark.parametrize("bound", [0, 1, 2, 4])
def test_no_update_is_staler_than_the_bound_whoever_is_slow(bound):
    store = make_store(kind=BoundedSlice, steps=60, training={"mode": "bounded", "max_staleness": bound}, rule="sgd")
    step = bounded_step(store, lambda worker: 0.01 if worker == 2 else 0.001)
    run_workers(lambda worker: [step(number, worker) for number in range(worker, 60, 3)])
    (rows,), (counts,) = ledger_of(store)
    assert rows["step"].tolist() == list(range(60)) and counts["version"] == 60
    assert rows["staleness"].max() <= bound


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_an_update_may_be_as_stale_as_the_bound(bound):
    store = make_store(kind=BoundedSlice, training={"mode": "bounded", "max_staleness": bound}, rule="sgd")
    tf.function(store.slices[0].admit, autograph=False)(identity(0))
    old = pull(store, 0)
    step = bounded_step(store, lambda worker: 0.0)
    for number in range(bound):
        step(number, 1)
    outcome = store.push(identity(bound), old.versions, old.weights, old.statistics, row(worker=0))
    assert outcome.numpy().tolist() == [APPLIED]
    rows, _ = ledger_of(store)
    assert rows[0]["staleness"].tolist() == [0] * bound + [bound]


def test_a_bound_of_zero_is_the_sequential_mathematics():
    store = make_store(kind=BoundedSlice, steps=30, training={"mode": "bounded", "max_staleness": 0}, rule="sgd")
    step = bounded_step(store, lambda worker: 0.002)
    run_workers(lambda worker: [step(number, worker) for number in range(worker, 30, 3)])
    assert state_of(store)["weights"] == pytest.approx(START * 0.9**30, rel=1e-5)


def test_a_gradient_beyond_the_bound_is_dropped_and_counted():
    store = make_store(kind=BoundedSlice, training={"mode": "bounded", "max_staleness": 1}, rule="sgd")
    old = pull(store)
    step = bounded_step(store, lambda worker: 0.0)
    step(0, 0)
    step(1, 0)
    outcome = store.push(identity(2), old.versions, old.weights, old.statistics, row(worker=1))
    assert outcome.numpy().tolist() == [DROPPED]
    (rows,), (counts,) = ledger_of(store)
    assert counts == {"version": 2, "applied": 2, "accepted": 2, "refused": 0, "dropped": 1}
    assert rows["step"].tolist() == [0, 1]


def test_a_worker_that_is_taken_for_dead_stops_nobody_and_its_late_gradient_is_dropped(monkeypatch):
    monkeypatch.setattr(coordinated, "LEASE_S", 0.2)
    training = {"mode": "bounded", "max_staleness": 1, "batch_size_per_worker": 1}  # of a large batch it lasts longer
    store = make_store(kind=BoundedSlice, training=training, rule="sgd")
    first = store.slices[0]
    tf.function(first.admit, autograph=False)(identity(0))
    old = pull(store, 0)
    step = bounded_step(store, lambda worker: 0.0)
    run_workers(lambda worker: [step(3 * number + worker + 1, worker + 1) for number in range(4)], workers=2)
    outcome = store.push(identity(0), old.versions, old.weights, old.statistics, row(worker=0))
    assert outcome.numpy().tolist() == [DROPPED]
    _, (counts,) = ledger_of(store)
    assert counts == {"version": 8, "applied": 8, "accepted": 8, "refused": 0, "dropped": 1}


def round_step(store, end):
    """Takes part in one round with the gradient (worker + 1) w; returns the outcome and the version pulled."""
    (first,) = store.slices

    @tf.function(autograph=False)
    def run(info, wait):
        worker = tf.cast(info[WORKER_COLUMNS.index("worker")], tf.int64)
        with tf.control_dependencies([first.admit_to_round(worker, identity(end))]):
            pulled = store.pull(worker)
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
    state, ((rows,), (counts,)) = state_of(store), ledger_of(store)
    assert counts == {"version": 10, "applied": 10, "accepted": 30, "refused": 0, "dropped": 0}
    assert state["statistics"].tolist() == [10.0] * 3, "the mean of the workers' changes, not their sum"
    weights, velocity = START, np.zeros(LENGTH)
    for _ in range(10):
        velocity = 0.5 * velocity - 0.1 * 2 * weights  # (1 + 2 + 3) / 3 w
        weights = weights + velocity
    assert state["weights"] == pytest.approx(weights, rel=1e-5, abs=1e-7)
    assert rows["version"].tolist() == np.repeat(np.arange(1, 11), 3).tolist()
    assert not rows["staleness"].any()


def test_the_time_of_a_rounds_update_is_that_of_its_last_gradient():
    class SlowSlice(RoundSlice):
        def update(self, *args):
            with tf.control_dependencies([sleep(tf.constant(0.05, tf.float64))]):
                return super().update(*args)

    store = make_store(kind=SlowSlice, training={"mode": "sync-ps"}, steps=4, rule="sgd")
    run_workers(round_step(store, 4))
    (rows,), _ = ledger_of(store)
    seconds = rows["applied_time"] - rows["entered_time"]
    assert ((seconds.reshape(4, 3) >= 0.05).sum(axis=1) == 1).all()


def test_with_a_backup_worker_the_first_gradients_count_and_the_late_one_is_dropped():
    training = {"mode": "sync-ps", "backup_workers": 1}
    store = make_store(kind=RoundSlice, training=training, steps=10, rule="sgd")
    work = round_step(store, 10)
    run_workers(lambda worker: work(worker, seconds=0.05 if worker == 2 else 0.0))
    (rows,), (counts,) = ledger_of(store)
    assert (counts["version"], counts["accepted"]) == (10, 20) and counts["dropped"] > 0
    took_part = np.isin(np.arange(30), rows["step"]).reshape(10, 3)
    assert (took_part.sum(axis=1) == 2).all() and took_part[:, 2].sum() < 10, "two a round, and not always the slow one"
    means = took_part @ [1, 2, 3] / 2
    assert state_of(store)["weights"] == pytest.approx(START * np.prod(1 - 0.1 * means), rel=1e-5)


def test_a_round_that_was_half_full_at_a_snapshot_goes_on_behind_it():
    made = [make_store(kind=RoundSlice, training={"mode": "sync-ps"}, steps=1, rule="sgd") for _ in range(2)]
    pulled = pull(made[0])
    ones = tf.ones(LENGTH)
    for worker in range(2):
        made[0].push(identity(worker), pulled.versions, ones, pulled.statistics, row(worker=worker))
    made[1].restore(state_of(made[0]))
    made[1].push(identity(2), pulled.versions, 4 * ones, pulled.statistics, row(worker=2))
    _, (counts,) = ledger_of(made[1])
    assert counts == {"version": 1, "applied": 1, "accepted": 3, "refused": 0, "dropped": 0}
    assert state_of(made[1])["weights"] == pytest.approx(START - 0.1 * 2, rel=1e-5, abs=1e-7)
