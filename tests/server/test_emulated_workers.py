"""Weights of versions ago for emulated workers, and weights that return to their mean."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.server.store import StepPush
from tests.helpers.stores import (
    LENGTH,
    eagerly,
    ledger_of,
    make_store,
    pull,
    quadratic_step,
    row,
    run_quadratic,
    state_of,
)


@eagerly()
def test_simulated_workers_read_the_weights_of_so_many_versions_ago():
    values = {"mode.simulate_workers": 5}
    store = make_store(values=values, rule="sgd", steps=20)  # 3 workers: 2 versions back
    target = np.zeros(LENGTH, np.float32)
    weights = [np.linspace(-1, 1, LENGTH)]
    for step in range(20):
        weights.append(weights[-1] - 0.1 * weights[max(0, step - 2)])
    assert run_quadratic(store, 20, target) == pytest.approx(weights[-1], rel=1e-5, abs=1e-6)
    [rows], _ = ledger_of(store)
    assert rows["staleness"].tolist() == [0, 1] + [2] * 18


@eagerly()
def test_after_a_restore_nothing_older_than_the_snapshot_is_given():
    made = [make_store(values={"mode.simulate_workers": 6}, rule="sgd", steps=20) for _ in range(2)]
    run_quadratic(made[0], 10, np.zeros(LENGTH, np.float32))
    made[1].restore(state_of(made[0]))
    pulled = pull(made[1])
    assert pulled.versions.numpy().tolist() == [10]
    assert (pulled.weights.numpy() == state_of(made[0])["weights"]).all()
    made[1].push(StepPush(tf.constant(10, tf.int64), pulled.versions, pulled.weights, pulled.statistics, row()))
    assert pull(made[1]).versions.numpy().tolist() == [10]


@eagerly()
def test_simulated_workers_read_the_statistics_of_the_same_version_as_the_weights():
    store = make_store(values={"mode.simulate_workers": 5}, rule="sgd", steps=20)  # 3 workers: 2 versions back
    run = quadratic_step(store, np.zeros(LENGTH, np.float32))  # its fresh statistics are ones, and all is kept
    for step in range(6):
        pulled = pull(store)
        assert pulled.versions.numpy().tolist() == [max(0, step - 2)]
        assert pulled.statistics.numpy().tolist() == [max(0, step - 2)] * 3
        run(tf.constant(step, tf.int64), row())
    assert state_of(store)["statistics"].tolist() == [6.0] * 3


START = np.linspace(-1, 1, LENGTH)
AVERAGED = {"lookahead.every_updates": 3, "lookahead.decay": 0.9}


def train(store, steps):
    """Steps down |w|^2 / 2, one after the other."""
    for step in steps:
        pulled = pull(store)
        store.push(StepPush(tf.constant(step, tf.int64), pulled.versions, pulled.weights, pulled.statistics, row()))


def expected(updates, total):
    fast, slow = START.copy(), START.copy()
    for update in range(1, updates + 1):
        fast = fast - 0.1 * fast
        if update % 3 == 0:
            decay = 0.9**3 * (update / total) ** 3
            slow = decay * slow + (1 - decay) * fast
            fast = slow.copy()
    return (slow if updates == total else fast), slow


@pytest.mark.parametrize(("updates", "total"), [(8, 9), (9, 9), (8, 8)], ids=["between", "last", "last, no multiple"])
@eagerly()
def test_every_few_updates_the_weights_return_to_their_mean_and_the_last_ones_are_it(updates, total):
    store = make_store(2, steps=total, rule="sgd", values=AVERAGED)
    train(store, range(updates))
    state = state_of(store)
    fast, slow = expected(updates, total)
    assert state["weights"] == pytest.approx(fast, rel=1e-5)
    assert state["slot_slow"] == pytest.approx(slow, rel=1e-5)
    assert (np.abs(fast - slow).max() < 1e-6) == (updates == total)
    assert np.abs(fast - START * 0.9**8).max() > 0.01, "it is not what happens without"


def test_a_restored_training_goes_on_with_the_same_mean():
    whole, first, second = (make_store(steps=8, rule="sgd", values=AVERAGED) for _ in range(3))
    train(whole, range(8))
    train(first, range(4))
    second.restore(state_of(first))
    train(second, range(4, 8))
    assert (state_of(second)["weights"] == state_of(whole)["weights"]).all()
