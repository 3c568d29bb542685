"""Synchronous rounds, their workers threads of this process; the waiting is what a parameter server runs."""

from itertools import permutations

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.runs.ledger import COUNTS, WORKER_COLUMNS
from ps_cluster.runs.proof import RoundShape, audit
from ps_cluster.runs.step_set import StepSet
from ps_cluster.server.shard import APPLIED, DROPPED
from ps_cluster.server.store import StepPush
from ps_cluster.training.modes.sync_ps import RoundShard
from ps_cluster.training.slow_down import sleep
from tests.helpers.ledgers import write_journal
from tests.helpers.stores import LENGTH, ledger_of, make_store, pull, row, state_of
from tests.helpers.waiting import identity, run_workers

START = np.linspace(-1, 1, LENGTH)


def round_step(store, end):
    """Takes part in one round with the gradient (worker + 1) w; returns the outcome and the version pulled."""
    (first,) = store.shards

    @tf.function(autograph=False)
    def run(info, wait):
        worker = tf.cast(info[WORKER_COLUMNS.index("worker")], tf.int64)
        pulled = store.pull(worker, first.admit_to_round(worker, identity(end), []))
        with tf.control_dependencies([pulled.weights]):
            slept = sleep(wait)

        def push():
            with tf.control_dependencies([slept]):
                step = pulled.versions[0] * 3 + worker
            gradient = pulled.weights * tf.cast(worker + 1, tf.float32)
            return store.push(StepPush(step, pulled.versions, gradient, tf.ones_like(pulled.statistics), info))[0]

        return tf.cond(pulled.versions[0] < end, push, lambda: -1), pulled.versions[0]

    run.get_concrete_function(row(worker=0), tf.constant(0.0, tf.float64))  # or the first one traces alone

    def until_the_end(worker, seconds=0.0):
        while run(row(worker=worker), tf.constant(seconds, tf.float64))[1] < end:
            pass

    return until_the_end


def test_a_round_is_one_update_with_the_mean_of_all_gradients():
    store = make_store(kind=RoundShard, values={"mode.name": "sync-ps"}, steps=10, rule="momentum", momentum=0.5)
    work = round_step(store, 10)
    run_workers(work)
    state, ([rows], [counts]) = state_of(store), ledger_of(store)
    assert counts == {"version": 10, "accepted": 30, "refused": 0, "dropped": 0}
    assert state["statistics"].tolist() == [10.0] * 3, "the mean of the workers' changes, not their sum"
    weights, velocity = START, np.zeros(LENGTH)
    for _ in range(10):
        velocity = 0.5 * velocity - 0.1 * 2 * weights  # (1 + 2 + 3) / 3 w
        weights = weights + velocity
    assert state["weights"] == pytest.approx(weights, rel=1e-5, abs=1e-7)
    assert rows["version"].tolist() == np.repeat(np.arange(1, 11), 3).tolist() and not rows["staleness"].any()


@pytest.mark.slow
def test_the_time_of_a_rounds_update_is_that_of_its_last_gradient():
    class SlowShard(RoundShard):
        def apply_gradient(self, *args):
            with tf.control_dependencies([sleep(tf.constant(0.05, tf.float64))]):
                return super().apply_gradient(*args)

    store = make_store(kind=SlowShard, values={"mode.name": "sync-ps"}, steps=4, rule="sgd")
    run_workers(round_step(store, 4))
    [rows], _ = ledger_of(store)
    seconds = rows["applied_time"] - rows["entered_time"]
    assert ((seconds.reshape(4, 3) >= 0.05).sum(axis=1) == 1).all()


def test_with_a_backup_worker_the_first_gradients_count_and_the_late_one_is_dropped():
    values = {"mode.name": "sync-ps", "mode.backup_workers": 1}
    store = make_store(kind=RoundShard, values=values, steps=6, rule="sgd")
    orders, weights, outcomes = list(permutations(range(3))), START, []
    for version, order in enumerate(orders):
        pulled = pull(store)
        for worker in order:
            step, gradient = identity(3 * version + worker), pulled.weights * (worker + 1)
            outcomes += (
                store.push(StepPush(step, pulled.versions, gradient, pulled.statistics, row(worker=worker)))
                .numpy()
                .tolist()
            )
        weights = weights * (1 - 0.1 * (order[0] + order[1] + 2) / 2)
    assert outcomes == [APPLIED, APPLIED, DROPPED] * 6
    [rows], [counts] = ledger_of(store)
    assert counts == {"version": 6, "accepted": 12, "refused": 0, "dropped": 6}
    assert rows["step"].tolist() == [3 * v + worker for v, order in enumerate(orders) for worker in sorted(order[:2])]
    assert state_of(store)["weights"] == pytest.approx(weights, rel=1e-5)


def test_a_late_gradient_that_is_wrongly_counted_has_its_true_staleness_in_the_ledger():
    class Mistaken(RoundShard):
        def refuse_or_apply(self, push):
            return self._contribute(push)

    values = {"mode.name": "sync-ps", "mode.backup_workers": 1}
    store = make_store(kind=Mistaken, values=values, steps=2, rule="sgd")
    push_to_round(store, 0, [0, 1, 2], APPLIED)
    ([rows], _) = ledger_of(store)
    assert rows["staleness"].tolist() == [0, 0, 1]


GRACE = {"mode.name": "sync-ps", "mode.backup_workers": 1, "mode.grace_seconds": 1.0}


def push_to_round(store, version, workers, wanted):
    """Push worker + 1 times ones to round `version`."""
    for worker in workers:
        gradient, step = (worker + 1) * tf.ones(LENGTH), identity(3 * version + worker)
        (outcome,) = store.push(StepPush(step, identity([version]), gradient, tf.ones(3), row(worker=worker))).numpy()
        assert outcome == wanted


def test_a_round_waits_a_grace_period_for_late_gradients_and_not_longer(tmp_path):
    store = make_store(kind=RoundShard, values=GRACE, steps=3, rule="sgd")

    def tick():
        store.tick(0.5, handed_out=9, longest_update_s=60.0)

    push_to_round(store, 0, [0, 1], APPLIED)
    for _ in range(2):
        tick()
    assert state_of(store)["weights"] == pytest.approx(START), "the period is not over"
    push_to_round(store, 0, [2], APPLIED)  # all have come
    weights = START - 0.1 * (1 + 2 + 3) / 3
    assert state_of(store)["weights"] == pytest.approx(weights, rel=1e-5)

    push_to_round(store, 1, [2], APPLIED)
    for _ in range(4):
        tick()  # while one gradient is missing, the period has not begun
    push_to_round(store, 1, [0], APPLIED)
    for _ in range(2):
        tick()
    assert ledger_of(store)[1][0]["version"] == 1, "each period is as long"
    tick()
    push_to_round(store, 1, [1], DROPPED)
    weights -= 0.1 * (3 + 1) / 2
    assert state_of(store)["weights"] == pytest.approx(weights, rel=1e-5)
    assert state_of(store)["statistics"] == pytest.approx(2 * np.ones(3)), "the mean of each round's, not their sum"

    push_to_round(store, 2, [1, 2], APPLIED)
    other = make_store(kind=RoundShard, values=GRACE, steps=3, rule="sgd")
    other.restore(state_of(store))
    for _ in range(3):
        other.tick(0.5, handed_out=9, longest_update_s=60.0)
    state, ([rows], [counts]) = state_of(other), ledger_of(store)
    assert state["weights"] == pytest.approx(weights - 0.1 * (2 + 3) / 2, rel=1e-5), "also behind a snapshot"
    assert counts == {"version": 2, "accepted": 7, "refused": 0, "dropped": 1}
    journals = [write_journal(tmp_path / "shard-0", rows)]
    proof = audit(journals, np.array([list(counts.values())]), RoundShape(3, 2, 3), StepSet(2), None)
    assert not proof.problems, proof.problems


def test_a_round_that_was_half_full_at_a_snapshot_goes_on_behind_it():
    made = [make_store(kind=RoundShard, values={"mode.name": "sync-ps"}, steps=1, rule="sgd") for _ in range(2)]
    pulled = pull(made[0])
    ones = tf.ones(LENGTH)
    for worker in range(2):
        made[0].push(StepPush(identity(worker), pulled.versions, ones, pulled.statistics, row(worker=worker)))
    made[1].restore(state_of(made[0]))
    made[1].push(StepPush(identity(2), pulled.versions, 4 * ones, pulled.statistics, row(worker=2)))
    state = state_of(made[1])
    assert dict(zip(COUNTS, state["counts"][0].tolist())) == {
        "version": 1, "accepted": 3, "refused": 0, "dropped": 0
    }  # fmt: skip
    assert state["weights"] == pytest.approx(START - 0.1 * 2, rel=1e-5, abs=1e-7)
