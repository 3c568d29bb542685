"""Update rules for the rows of embedding tables, against their equations in numpy."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.equations import UpdateParts
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.server.table_shard import TableShard
from ps_cluster.server.update_rules.row_rule import RowUpdate

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


def by_rows(rule, share=None):
    """Return weights and slots, float32 [ROWS, WIDTH], after the updates of rows."""
    table = TableShard(FIRST, settings_of(rule))
    for count, (places, gradient) in enumerate(zip(TOUCHED, GRADIENTS)):
        rows = tf.constant(places, tf.int64), tf.constant(gradient.ravel(), tf.float32)
        table.apply(RowUpdate(*rows, tf.constant(RATE), tf.constant(count, tf.int64), share))
    variables = {"weights": table.rows, **table.slots}
    return {name: variable.numpy().reshape(ROWS, WIDTH) for name, variable in variables.items()}


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
    assert (found["weights"] == FIRST).all(axis=1).tolist() == [False] * 3 + [True] + [False] * 2


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
