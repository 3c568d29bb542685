"""The equation with which the proof computes an update again, against what the rule does to weights and slots."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.equations import UpdateParts
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.server.update_rules.rule import decay_rates, make_rule

LENGTH, RATE = 5, 0.1
FACTORS = {"no factors": np.ones(LENGTH), "factors": np.array([1, 0, 2, 0.5, 1])}
SHARES = {"whole": None, "share": 0.3, "share of each": np.array([0, 0.2, 0.5, 0.8, 1])}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "rmsprop", "adagrad", "ftrl"])
def test_an_update_is_what_the_equation_says(name, factors, share):
    chosen, counts = FACTORS[factors], SHARES[share]
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
        rule.apply(tf.constant(gradient), rate, tf.constant(count, tf.int64), given)
        expected = RULES[name].equation(settings, parts)
        assert expected.keys() == {"weights", *rule.slots}
        for key, value in expected.items():
            found = (weights if key == "weights" else rule.slots[key]).numpy()
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6, err_msg=f"{key} after update {count + 1}")
        assert chosen[1] or weights.numpy()[1] == -0.5, "a weight with factor 0 never changes"
