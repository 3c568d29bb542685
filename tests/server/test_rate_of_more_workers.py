"""The learning rate while more workers take part than training was begun with, in the shard and in the proof."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.runs.ledger import RATE_RETURNS_OVER, TAKES_PART_FOR
from ps_cluster.runs.proof import FactorsOfRates
from ps_cluster.server.rate_of_more_workers import RateOfMoreWorkers
from ps_cluster.server.store import StepPush
from tests.helpers.stores import LENGTH, eagerly, ledger_of, make_store, pull, row, state_of

RATE, BEGUN = 0.1, 3
OF_FIVE = {"cluster.workers": BEGUN, "cluster.max_workers": 5}
TURN = (0, 1, 2)


def expected_factors(workers, begun=BEGUN):
    """Return the factor of each update, one after the other. `workers`: the index of the worker of each."""
    newest, factors = {}, [1.0]
    for update, worker in enumerate(workers):
        newest[worker] = update
        window = TAKES_PART_FOR * max(begun, len(newest))
        take_part = sum(update - last < window for last in newest.values())
        factors.append(min(min(1.0, begun / take_part) ** 2, factors[-1] * (1 + 1 / RATE_RETURNS_OVER)))
    return factors[1:]


def computed_factors(workers):
    rate = RateOfMoreWorkers(BEGUN)
    factor = tf.function(rate.factor, autograph=False)
    return [float(factor(tf.constant(worker, tf.int64))) for worker in workers]


def push(store, workers, first=0):
    """Push a gradient of ones from each worker in turn, and return the weights after each."""
    weights = []
    for step, worker in enumerate(workers, first):
        pulled = pull(store, worker)
        store.push(
            StepPush(
                tf.constant(step, tf.int64), pulled.versions, tf.ones([LENGTH]), pulled.statistics, row(RATE, worker)
            )
        )
        weights.append(state_of(store)["weights"])
    return np.array(weights)


@pytest.mark.parametrize(
    ("workers", "lowest", "last"),
    [
        (TURN * 5, 1, 1),  # nobody joins
        ((*TURN, 3, 4), 9 / 25, 9 / 25),  # two join, one after the other
        ((4, *TURN), 9 / 16, 9 / 16),  # another one in place of the last: they are four
        ((*TURN, 3, *TURN * 100), 9 / 16, 1),  # one joins and leaves
        ((0, *[1, 2] * 100, *TURN * 5), 1, 1),  # one of the first leaves and returns
        ((*TURN, 3, 4, *TURN * 100, 3, 4), 9 / 25, 9 / 25),  # two leave and return
    ],
)
def test_the_rate_is_lowered_while_more_workers_take_part_than_at_first(workers, lowest, last):
    factors = computed_factors(workers)
    assert factors == pytest.approx(expected_factors(workers), rel=1e-4)
    assert (min(factors), factors[-1]) == pytest.approx((lowest, last))


def test_the_proof_computes_the_same_factors_from_the_rows_by_another_way():
    draw = np.random.default_rng(0)
    workers = np.concatenate([draw.integers(0, count, 300) for count in (3, 5, 4, 1, 9, 2)])
    once = FactorsOfRates(BEGUN).read(workers)
    assert once == pytest.approx(expected_factors(workers), rel=1e-9) and once.min() == pytest.approx(1 / 9)
    assert once == pytest.approx(computed_factors(workers), rel=1e-4)
    in_pieces = FactorsOfRates(BEGUN)
    pieces = [in_pieces.read(piece) for piece in np.split(workers, [1, 299, 700, 1100])]
    assert np.concatenate(pieces) == pytest.approx(once, rel=1e-9)


@eagerly()
@pytest.mark.parametrize("shards", [1, 2])
def test_an_update_takes_the_rate_of_its_row_times_the_factor_of_its_row(shards):
    store, workers = make_store(shards, rule="sgd", values=OF_FIVE), [0, 1, 2, 3, 4, 0, 1]
    weights = push(store, workers)
    factors = expected_factors(workers)
    steps = -np.diff(weights, axis=0, prepend=[np.linspace(-1, 1, LENGTH)])
    assert steps == pytest.approx(RATE * np.array(factors)[:, None] * np.ones(LENGTH), rel=1e-4)
    for rows in ledger_of(store)[0]:
        assert rows["rate_factor"] == pytest.approx(factors, rel=1e-5)
        assert rows["learning_rate"].tolist() == [RATE] * len(workers)


@eagerly()
def test_a_step_of_adam_is_lowered_by_the_factor_although_adam_takes_no_notice_of_the_size_of_gradients():
    values = {"cluster.workers": 1, "cluster.max_workers": 2}
    lowered, usual = (make_store(rule="adam", momentum=0.0, beta_2=0.5, values=values) for _ in range(2))
    (before, after), (_, whole) = push(lowered, [0, 1]), push(usual, [0, 0])
    assert before - after == pytest.approx((before - whole) / 4, rel=1e-3)


@eagerly()
def test_a_training_that_is_resumed_with_more_workers_has_the_rate_of_one_that_is_scaled():
    first = make_store(rule="sgd", values={"cluster.workers": BEGUN})
    push(first, TURN)
    more = make_store(rule="sgd", values={"cluster.workers": 5})
    more.restore(state_of(first))
    push(more, [0, 3, 4, 1], first=3)
    factors = ledger_of(more)[0][0]["rate_factor"]
    assert factors[-4:] == pytest.approx(expected_factors([*TURN, 0, 3, 4, 1])[-4:], rel=1e-5) and factors[-1] < 0.4


@eagerly()
def test_a_training_that_is_resumed_with_fewer_workers_has_the_factors_that_the_proof_expects():
    first = make_store(rule="sgd", values={"cluster.workers": 2, "cluster.max_workers": 4})
    before = [0, 1, 2, 3] * 3
    push(first, before)
    fewer = make_store(rule="sgd", values={"cluster.workers": 2})
    fewer.restore(state_of(first))
    later = [0, 1] * 60
    push(fewer, later, first=len(before))
    factors = ledger_of(fewer)[0][0]["rate_factor"][-len(later) :]
    assert factors == pytest.approx(FactorsOfRates(2).read(np.array(before + later))[-len(later) :], rel=1e-5)
    assert factors[0] == pytest.approx(0.25) and factors[-1] > 0.3


@eagerly()
@pytest.mark.parametrize("places", [5, 8, 2])
def test_a_restored_training_goes_on_with_the_factor_that_it_had(places):
    values = {"cluster.workers": 1, "cluster.max_workers": 5}
    whole, first = (make_store(2, rule="sgd", values=values) for _ in range(2))
    second = make_store(2, rule="sgd", values=values | {"cluster.max_workers": places})
    push(first, [0, 1, 0])
    second.restore(state_of(first))
    expected = push(whole, [0, 1, 0, 1, 0])[-1]
    assert push(second, [1, 0], first=3)[-1].tobytes() == expected.tobytes()
