import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.stores import LENGTH, make_store, pull, row, state_of

START = np.linspace(-1, 1, LENGTH)
AVERAGED = {"lookahead.every_updates": 3, "lookahead.decay": 0.9}


def train(store, steps):
    """Steps down |w|^2 / 2, one after the other."""
    for step in steps:
        pulled = pull(store)
        store.push(tf.constant(step, tf.int64), pulled.versions, pulled.weights, pulled.statistics, row())


def expected(updates, total):
    fast, slow = START.copy(), START.copy()
    for update in range(1, updates + 1):
        fast = fast - 0.1 * fast
        if update % 3 == 0:
            decay = 0.9**3 * (update / total) ** 3
            slow = decay * slow + (1 - decay) * fast
            fast = slow.copy()
    return fast, slow


def test_every_few_updates_the_weights_return_to_their_mean():
    store = make_store(2, steps=8, rule="sgd", values=AVERAGED)
    train(store, range(8))
    state = state_of(store)
    fast, slow = expected(8, 8)
    assert state["weights"] == pytest.approx(fast, rel=1e-5)
    assert state["slot_slow"] == pytest.approx(slow, rel=1e-5)
    assert np.abs(fast - START * 0.9**8).max() > 0.01, "it is not what happens without"


def test_a_restored_training_goes_on_with_the_same_mean():
    whole, first, second = (make_store(steps=8, rule="sgd", values=AVERAGED) for _ in range(3))
    train(whole, range(8))
    train(first, range(4))
    second.restore(state_of(first))
    train(second, range(4, 8))
    assert (state_of(second)["weights"] == state_of(whole)["weights"]).all()
