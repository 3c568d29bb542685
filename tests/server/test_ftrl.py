"""Rule ftrl: what it does with a learning rate that changes, and what can't be joined with it."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.server.update_rules.rule import make_rule

RATE = 0.1


def weights_after(gradients, factors=(1, 1, 1), **settings):
    """Return the weights after updates from 0. `gradients`: pairs of a gradient [3] and the learning rate."""
    values = {"rule": "ftrl", "weight_decay": 0.0} | settings
    config = build_config(overrides={f"optimizer.{name}": value for name, value in values.items()})
    weights = tf.Variable(tf.zeros([3]))
    rule = make_rule(config.optimizer, weights, np.array(factors, np.float32))
    for gradient, rate in gradients:
        rule.apply(tf.constant(gradient, tf.float32), tf.constant(rate, tf.float32), tf.constant(0, tf.int64))
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
        ({"mode.name": "diloco"}, "optimizer.rule: got 'ftrl': rule ftrl computes .* in mode diloco would be lost: choose"),
        ({"optimizer.initial_accumulator_value": 0.0}, "optimizer.initial_accumulator_value: got 0.0"),
    ],
)  # fmt: skip
def test_what_would_change_the_weights_besides_it_is_refused(values, told):
    with pytest.raises(UserError, match=told):
        build_config(overrides={"optimizer.rule": "ftrl", "optimizer.weight_decay": 0.0} | values)
