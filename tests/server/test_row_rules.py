"""Update rules for the rows of embedding tables, against numpy and against the same rules for whole vectors."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.equations import UpdateParts
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.server.tables import TableShard
from ps_cluster.server.update_rules.row_rule import RowUpdate
from ps_cluster.server.update_rules.rule import make_rule

ROWS, WIDTH, RATE = 6, 3, 0.1
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


def arrays_of(weights, slots):
    """Return weights and slots, float32 [ROWS, WIDTH], by name."""
    variables = {"weights": weights, **slots}
    return {name: variable.numpy().reshape(ROWS, WIDTH) for name, variable in variables.items()}


def by_rows(rule, first=FIRST, share=None):
    """Return weights and slots after the updates of rows."""
    table = TableShard(first, settings_of(rule))
    for count, (places, gradient) in enumerate(zip(TOUCHED, GRADIENTS)):
        rows = tf.constant(places, tf.int64), tf.constant(gradient.ravel(), tf.float32)
        table.apply(RowUpdate(*rows, tf.constant(RATE), tf.constant(count, tf.int64), share))
    return arrays_of(table.rows, table.slots)


def whole(rule, first=FIRST, share=None):
    """Return weights and slots after the same updates of a vector, whose gradient is 0 in all other rows."""
    weights = tf.Variable(first.ravel())
    of_vector = make_rule(settings_of(rule), weights, np.ones(ROWS * WIDTH, np.float32))
    for count, (places, gradient) in enumerate(zip(TOUCHED, GRADIENTS)):
        dense = np.zeros([ROWS, WIDTH], np.float32)
        dense[places] = gradient
        of_vector.apply(tf.constant(dense.ravel()), tf.constant(RATE), tf.constant(count, tf.int64), share)
    return arrays_of(weights, of_vector.slots)


def by_equations(rule, share=None):
    """Return weights and slots in numpy, float64: each update changes by the rule's equation only the rows it has."""
    settings = settings_of(rule)
    first = RULES[rule].update.first_values(settings)
    now = {"weights": FIRST.astype(np.float64)} | {name: np.full([ROWS, WIDTH], start) for name, start in first.items()}
    for count, (places, gradient) in enumerate(zip(TOUCHED, GRADIENTS)):
        slots = {name: array[places] for name, array in now.items()}
        parts = UpdateParts(slots.pop("weights"), gradient, slots, RATE, count, np.ones(WIDTH), np.zeros(WIDTH), share)
        for name, made in RULES[rule].equation(settings, parts).items():
            now[name][places] = made
    return now


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("rule", SETTINGS)
def test_rows_with_a_gradient_change_as_the_equation_says_and_all_others_keep_their_weights_and_slots(rule, share):
    found, expected = by_rows(rule, share=share and tf.constant(share)), by_equations(rule, share)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    assert (found["weights"][3] == FIRST[3]).all() and (
        found["weights"][[0, 1, 2, 4, 5]] != FIRST[[0, 1, 2, 4, 5]]
    ).all()


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "ftrl"])
def test_rows_get_the_weights_and_slots_of_a_whole_vector_whose_gradient_is_0_elsewhere(rule, share):
    # The rule ftrl for vectors makes a weight without gradients 0, whatever its first value was.
    first, share = 0 * FIRST if rule == "ftrl" else FIRST, share and tf.constant(share)
    found, expected = by_rows(rule, first, share), whole(rule, first, share)
    assert found.keys() == expected.keys() and np.abs(found["weights"] - first).max() > 0.05
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-7, err_msg=name)


def test_without_a_gradient_a_row_keeps_its_first_weights_by_ftrl_and_a_whole_vector_does_not():
    assert (by_rows("ftrl")["weights"][3] == FIRST[3]).all() and (whole("ftrl")["weights"][3] == 0).all()


def test_adam_moves_a_row_without_a_gradient_only_where_it_is_part_of_a_whole_vector():
    lazy, dense = by_rows("adam"), whole("adam")
    assert (lazy["weights"][3] == dense["weights"][3]).all(), "it never had a gradient"
    assert (np.abs(lazy["weights"] - dense["weights"]).max(axis=1)[[0, 1, 2, 5]] > 1e-3).all()


def test_the_mean_of_a_round_is_applied_to_the_rows_of_all_its_pushes_and_the_sum_begins_again_at_0():
    table = TableShard(FIRST, settings_of("sgd"))
    table.keep_sum()
    pushes = list(zip(TOUCHED[:2], GRADIENTS[:2]))
    for places, gradient in pushes:
        table.add_to_sum(tf.constant(places, tf.int64), tf.constant(gradient.ravel(), tf.float32))
    places, total = table.summed()
    expected = np.zeros([ROWS, WIDTH])
    for rows, gradient in pushes:
        expected[rows] += gradient
    assert sorted(places.numpy().tolist()) == [0, 1, 2, 5], "each row once"
    np.testing.assert_allclose(total.numpy().reshape(-1, WIDTH), expected[places.numpy()], rtol=1e-6)
    table.clear_sum(places)
    assert not table.slots["sum"].numpy().any() and table.summed()[0].shape == [0]
