"""Check that each update rule agrees with the equations by which the proof recomputes an update, also for rows of tables.

Also check rule ftrl: a learning rate that changes, and the settings that it refuses.
"""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.equations import UpdateParts
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.errors import UserError
from ps_cluster.server.table_shard import TableShard
from ps_cluster.server.update_rules.rule import Gradient, decay_rates, make_rule

RATE = 0.1

LENGTH = 5
FACTORS = {"no factors": np.ones(LENGTH), "factors": np.array([1, 0, 2, 0.5, 1])}
SHARES = {"whole": None, "share": 0.3, "share of each": np.array([0, 0.2, 0.5, 0.8, 1])}


@pytest.mark.parametrize("gradient_scale", SHARES)
@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "rmsprop", "adagrad", "ftrl"])
def test_an_update_is_what_the_equation_says(name, factors, gradient_scale):
    chosen, counts = FACTORS[factors], SHARES[gradient_scale]
    own = {"optimizer.l1": 0.2, "optimizer.l2": 0.3} if name == "ftrl" else {"optimizer.weight_decay": 0.2}
    settings = build_config(overrides={"optimizer.rule": name, "optimizer.weight_decay": 0.0} | own).optimizer
    weights = tf.Variable(np.linspace(-1, 1, LENGTH, dtype=np.float32))
    rule = make_rule(settings, weights, chosen.astype(np.float32))
    random, rate = np.random.default_rng(0), tf.constant(RATE, tf.float32)
    decay = np.broadcast_to(decay_rates(settings, chosen), LENGTH).astype(np.float64)
    for count in range(3):
        gradient = random.normal(size=LENGTH).astype(np.float32)
        before = {key: slot.numpy().astype(np.float64) for key, slot in rule.slots.items()}
        was = weights.numpy().astype(np.float64)
        parts = UpdateParts(was, gradient.astype(np.float64), before, RATE, count, chosen, decay, counts)
        given = None if counts is None else tf.constant(counts, tf.float32)
        rule.apply(Gradient(tf.constant(gradient), rate, tf.constant(count, tf.int64), given))
        expected = RULES[name].equation(settings, parts)
        assert expected.keys() == {"weights", *rule.slots}
        for key, value in expected.items():
            found = (weights if key == "weights" else rule.slots[key]).numpy()
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6, err_msg=f"{key} after update {count + 1}")
        assert chosen[1] or weights.numpy()[1] == -0.5, "a weight with factor 0 never changes"


ROWS, WIDTH = 6, 3
# Of each update the rows that have a gradient. Row 3 never has one. The first update has none in row 0, which has one later.
TOUCHED = [[5, 1], [0, 1, 2], [], [4, 5, 0], [1]]
FIRST = np.random.default_rng(0).normal(size=[ROWS, WIDTH]).astype(np.float32)
GRADIENTS = [np.random.default_rng(1 + n).normal(size=[len(rows), WIDTH]) for n, rows in enumerate(TOUCHED)]
SETTINGS = {
    "sgd": {},
    "adagrad": {},
    "ftrl": {"optimizer.l1": 0.02, "optimizer.l2": 0.3, "optimizer.learning_rate_power": -0.4},
    "adam": {},
}


def settings_of(rule):
    return build_config(overrides={"optimizer.rule": rule, "optimizer.weight_decay": 0.0} | SETTINGS[rule]).optimizer


def by_rows(rule, gradient_scale=None):
    """Return weights and slots, float32 [ROWS, WIDTH], after the updates of rows."""
    table = TableShard(FIRST, settings_of(rule))
    for count, (indices, gradient) in enumerate(zip(TOUCHED, GRADIENTS)):
        numbers = tf.constant(RATE), tf.constant(count, tf.int64), gradient_scale
        table.apply(tf.constant(indices, tf.int64), Gradient(tf.constant(gradient.ravel(), tf.float32), *numbers))
    variables = {"weights": table.rows, **table.slots}
    return {name: variable.numpy().reshape(ROWS, WIDTH) for name, variable in variables.items()}


def by_equations(rule, gradient_scale=None):
    """Return weights and slots in numpy, float64: each update changes by the rule's equation only the rows it has."""
    settings = settings_of(rule)
    first = RULES[rule].update.first_values(settings)
    now = {"weights": FIRST.astype(np.float64)} | {name: np.full([ROWS, WIDTH], start) for name, start in first.items()}
    for count, (indices, gradient) in enumerate(zip(TOUCHED, GRADIENTS)):
        slots = {name: array[indices] for name, array in now.items()}
        parts = UpdateParts(
            slots.pop("weights"), gradient, slots, RATE, count, np.ones(WIDTH), np.zeros(WIDTH), gradient_scale
        )
        for name, made in RULES[rule].equation(settings, parts).items():
            now[name][indices] = made
    return now


@pytest.mark.parametrize("gradient_scale", [None, 0.3])
@pytest.mark.parametrize("rule", SETTINGS)
def test_rows_with_a_gradient_change_as_the_equation_says_and_all_others_keep_their_weights_and_slots(
    rule, gradient_scale
):
    found, expected = (
        by_rows(rule, gradient_scale=gradient_scale and tf.constant(gradient_scale)),
        by_equations(rule, gradient_scale),
    )
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    assert (found["weights"] == FIRST).all(axis=1).tolist() == [False] * 3 + [True] + [False] * 2


def test_the_mean_of_a_round_is_applied_to_the_rows_of_all_its_pushes_and_the_sum_begins_again_at_0():
    table = TableShard(FIRST, settings_of("sgd"))
    table.keep_sum()
    pushes = list(zip(TOUCHED[:2], GRADIENTS[:2]))
    for indices, gradient in pushes:
        table.add_to_sum(tf.constant(indices, tf.int64), tf.constant(gradient.ravel(), tf.float32))
    indices, total = table.summed()
    expected = np.zeros([ROWS, WIDTH])
    for rows, gradient in pushes:
        expected[rows] += gradient
    assert sorted(indices.numpy().tolist()) == [0, 1, 2, 5], "each row once"
    np.testing.assert_allclose(total.numpy().reshape(-1, WIDTH), expected[indices.numpy()], rtol=1e-6)
    table.clear_sum(indices)
    assert not table.slots["sum"].numpy().any() and table.summed()[0].shape == [0]


def weights_after(gradients, factors=(1, 1, 1), **settings):
    """Return the weights after updates from 0. `gradients`: pairs of a gradient [3] and the learning rate."""
    values = {"rule": "ftrl", "weight_decay": 0.0} | settings
    config = build_config(overrides={f"optimizer.{name}": value for name, value in values.items()})
    weights = tf.Variable(tf.zeros([3]))
    rule = make_rule(config.optimizer, weights, np.array(factors, np.float32))
    for gradient, rate in gradients:
        numbers = tf.constant(rate, tf.float32), tf.constant(0, tf.int64)
        rule.apply(Gradient(tf.constant(gradient, tf.float32), *numbers))
    return weights.numpy()


@pytest.mark.parametrize("factors", [(1, 1, 1), (1, 1, 2)], ids=["kernel", "operations"])
def test_a_rate_that_falls_to_0_leaves_the_weights_where_they_are(factors):
    learned = weights_after([([1, -2, 3], RATE)], factors)
    expected = RATE * np.array([-1, 2, -3]) * factors / np.sqrt([1.1, 4.1, 9.1])
    assert learned == pytest.approx(expected, rel=1e-6)
    fallen = weights_after([([1, -2, 3], RATE), ([1, 1, 1], 0)], factors)
    assert fallen == pytest.approx(learned, rel=1e-6)


@pytest.mark.parametrize("factors", [(1, 1, 1), (1, 1, 2)], ids=["kernel", "operations"])
def test_l1_sets_weights_of_small_sums_of_gradients_to_exactly_0(factors):
    weights = weights_after([([0.2, -0.4, 0], RATE), ([0.2, -0.4, 0.1], RATE)], factors, l1=0.5)
    assert weights[0] == weights[2] == 0 and weights[1] > 0


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"optimizer.weight_decay": 0.1}, "optimizer.weight_decay: got 0.1: rule ftrl computes .*: set 0, and use opti"),
        ({"lookahead.every_updates": 5}, "lookahead.every_updates: got 5: rule ftrl computes .*: set 0"),
        ({"mode.name": "diloco"}, "optimizer.rule: got 'ftrl': rule ftrl computes .* in mode diloco .* overwrite .*: choose"),
        ({"optimizer.initial_accumulator_value": 0.0}, "optimizer.initial_accumulator_value: got 0.0"),
    ],
)  # fmt: skip
def test_what_would_change_the_weights_besides_it_is_refused(values, told):
    with pytest.raises(UserError, match=told):
        build_config(overrides={"optimizer.rule": "ftrl", "optimizer.weight_decay": 0.0} | values)
