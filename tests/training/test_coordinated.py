"""Workers that wait for each other, as threads of this process; the waiting is what a parameter server runs."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.training import ledger
from ps_cluster.training.bounded import LEASE_S, BoundedSlice
from ps_cluster.training.coordinated import RoundSlice
from ps_cluster.training.ledger import WORKER_COLUMNS
from ps_cluster.training.slice import APPLIED, DROPPED, NO_END, REFUSED, Turn
from ps_cluster.training.waiting import sleep
from tests.helpers.stores import LENGTH, make_store, pull, row

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


@contextmanager
def ticking(store, seconds, workers=3, last_step=NO_END):
    """Ticks again and again while its body runs: this is the chief."""
    ended = threading.Event()

    def tick():
        while not ended.wait(0.02):
            store.tick(seconds, workers=workers, last_step=last_step)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join(60)


def identity(number):
    return tf.constant(number, tf.int64)


def admit(store, worker, step, last_of_dispatch=None):
    """Returns when the worker may begin the step."""
    last = identity(NO_END if last_of_dispatch is None else last_of_dispatch)
    tf.function(store.slices[0].admit, autograph=False)(identity(worker), Turn(identity(step), last))


def bounded_step(store, seconds):
    """A step that takes its worker `seconds` (a function of the worker): the gradient of |w|^2 / 2.

    Every step is the first of a dispatch that has another one.
    """
    first = store.slices[0]

    @tf.function(autograph=False)
    def run(step, info, wait):
        worker = tf.cast(info[WORKER_COLUMNS.index("worker")], tf.int64)
        with tf.control_dependencies(first.admit(worker, Turn(step, step + 1))):
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
    rows, counts = store.read_ledgers(0, 60)
    assert ledger.applied(rows).all() and counts[0, 0] == 60
    assert ledger.column(rows[0], "staleness").max() <= bound


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_an_update_may_be_as_stale_as_the_bound(bound):
    store = make_store(kind=BoundedSlice, training={"mode": "bounded", "max_staleness": bound}, rule="sgd")
    admit(store, 0, step=bound)
    old = pull(store, 0)
    step = bounded_step(store, lambda worker: 0.0)
    for number in range(bound):
        step(number, 1)
    outcome = store.push(identity(bound), old.versions, old.weights, old.statistics, row(worker=0))
    assert outcome.numpy().tolist() == [APPLIED]
    rows, _ = store.read_ledgers(0, bound + 1)
    assert ledger.column(rows[0], "staleness").tolist() == [0] * bound + [bound]


def test_a_bound_of_zero_is_the_sequential_mathematics():
    store = make_store(kind=BoundedSlice, steps=30, training={"mode": "bounded", "max_staleness": 0}, rule="sgd")
    step = bounded_step(store, lambda worker: 0.002)
    run_workers(lambda worker: [step(number, worker) for number in range(worker, 30, 3)])
    assert store.snapshot(30)["weights"] == pytest.approx(START * 0.9**30, rel=1e-5)


def test_a_gradient_beyond_the_bound_is_dropped_and_counted():
    store = make_store(kind=BoundedSlice, training={"mode": "bounded", "max_staleness": 1}, rule="sgd")
    old = pull(store)
    step = bounded_step(store, lambda worker: 0.0)
    step(0, 0)
    step(1, 0)
    outcome = store.push(identity(2), old.versions, old.weights, old.statistics, row(worker=1))
    assert outcome.numpy().tolist() == [DROPPED]
    rows, counts = store.read_ledgers(0, 3)
    assert counts[0].tolist() == [2, 0, 1, 2] and ledger.applied(rows).tolist() == [True, True, False]


BOUNDS = [{"max_staleness": 1}, {"max_clock_lag": 1}, {"max_staleness": 1, "max_clock_lag": 1}]


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_a_worker_that_is_taken_for_dead_stops_nobody_and_its_late_gradient_is_dropped(bound):
    training = {"mode": "bounded", "batch_size_per_worker": 1} | bound  # of a large batch the lease lasts longer
    store = make_store(kind=BoundedSlice, training=training, rule="sgd")
    admit(store, 0, step=0)
    old = pull(store, 0)
    step = bounded_step(store, lambda worker: 0.0)
    with ticking(store, seconds=LEASE_S):
        run_workers(lambda worker: [step(3 * number + worker + 1, worker + 1) for number in range(4)], workers=2)
    outcome = store.push(identity(0), old.versions, old.weights, old.statistics, row(worker=0))
    assert outcome.numpy().tolist() == [DROPPED]
    assert store.read_ledgers(0, 1)[1][0].tolist() == [8, 0, 1, 8]


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
