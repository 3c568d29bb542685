"""Muon against numpy: which matrices are made orthogonal, and the steps of matrices and of other weights."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.equations import Matrix, UpdateParts
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.errors import UserError
from ps_cluster.models.flat import FlatLayout
from ps_cluster.server.initial_state import InitialState, ends_of_shards
from ps_cluster.server.update_rules.muon import orthogonal
from ps_cluster.server.update_rules.row_rule import RowsByFormula
from ps_cluster.server.update_rules.rule import Gradient, decay_rates, make_rule

RATE, MOMENTUM, DECAY = 0.1, 0.6, 0.5
PATHS = ("net/whiten/kernel", "net/conv/kernel", "net/conv/bias", "net/wide/kernel")
SHAPES = ((2, 3), (2, 2, 3, 4), (4,), (3, 7))
LAYOUT = FlatLayout(PATHS, SHAPES)


def of(**settings):
    values = {"rule": "muon", "learning_rate": RATE, "momentum": MOMENTUM, "weight_decay": 0.0} | settings
    return build_config(
        overrides={f"optimizer.{name}": value for name, value in values.items()} | {"model.name": "mlp"}
    )


@pytest.mark.parametrize("shape", [(24, 8), (8, 24)])
def test_it_is_the_iteration_of_the_source(shape):
    x = np.random.default_rng(1).normal(size=shape)
    x[:, 0] *= 30  # one direction far above the others
    ours = np.asarray(orthogonal(tf.constant(x, tf.float32)))
    x /= np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    np.testing.assert_allclose(ours, x, atol=2e-4)


def test_a_gradient_of_zeros_moves_no_matrix():
    assert not np.asarray(orthogonal(tf.zeros([4, 3]))).any()


def test_kernels_of_two_axes_or_more_are_matrices_with_a_column_for_each_unit():
    assert LAYOUT.matrices(("kernel",)) == [(0, 2, 3), (6, 12, 4), (58, 3, 7)]
    assert LAYOUT.matrices(("conv", "wide")) == [(6, 12, 4), (58, 3, 7)], "a bias is none"
    assert LAYOUT.matrices(()) == []


def test_the_projections_of_an_attention_layer_are_matrices_of_inputs_by_outputs():
    """As in the source of Muon, which has them as linear layers. Keras splits their outputs, or their inputs, into heads."""
    layer = keras.layers.MultiHeadAttention(2, 3, use_bias=False)
    layer.build((None, 4, 5), (None, 4, 5))
    places = FlatLayout.of(layer.variables).matrices(("kernel",))
    assert [(rows, columns) for _, rows, columns in places] == [(5, 6), (5, 6), (5, 6), (6, 5)]
    assert [begin for begin, _, _ in places] == [0, 30, 60, 90]


def test_matrices_take_orthogonal_steps_and_the_others_those_of_nesterov():
    random = np.random.default_rng(0)
    start = random.normal(size=LAYOUT.length).astype(np.float32)
    factors = LAYOUT.factors([("wide", 3.0)])
    weights = tf.Variable(start)
    matrices = LAYOUT.matrices(("conv", "wide"))
    settings = of(weight_decay=DECAY, rate_of_nesterov=2.5).optimizer
    rule = make_rule(settings, weights, factors, matrices=matrices)
    expected, velocity = start.astype(np.float64), np.zeros(LAYOUT.length)
    for number in range(3):
        gradient = random.normal(size=LAYOUT.length).astype(np.float32)
        rate = RATE / (number + 1)
        numbers = tf.constant(rate, tf.float32), tf.constant(number, tf.int64)
        rule.apply(Gradient(tf.constant(gradient), *numbers))
        velocity = MOMENTUM * velocity + gradient
        update = gradient + MOMENTUM * velocity
        step = 2.5 * update
        for begin, rows, columns in matrices:
            part = tf.constant(update[begin : begin + rows * columns].reshape(rows, columns), tf.float32)
            longer = max(1, columns / rows) ** 0.5
            step[begin : begin + rows * columns] = longer * np.asarray(orthogonal(part)).ravel()
        expected = expected - rate * DECAY * expected - rate * factors * step
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gradient_scale", [None, 0.3])
@pytest.mark.parametrize("rule", ["muon", "muon_adam"])
def test_an_update_is_what_the_equation_says(rule, gradient_scale):
    random = np.random.default_rng(0)
    factors = LAYOUT.factors([("wide", 3.0), ("conv", 0.0)])
    of_others = {"muon": {"rate_of_nesterov": 2.5}, "muon_adam": {"rate_of_adam": 0.4}}[rule]
    settings = of(rule=rule, weight_decay=DECAY, fixed_norm_every=2, **of_others).optimizer
    matrices = LAYOUT.matrices(("kernel",))
    weights = tf.Variable(random.normal(size=LAYOUT.length).astype(np.float32))
    updates = make_rule(settings, weights, factors, matrices=matrices)
    decay = np.broadcast_to(decay_rates(settings, factors), LAYOUT.length)
    for count in range(3):
        gradient = random.normal(size=LAYOUT.length).astype(np.float32)
        before, was = {name: slot.numpy() for name, slot in updates.slots.items()}, weights.numpy()
        parts = UpdateParts(was, gradient, before, RATE, count, factors, decay, gradient_scale, matrices)
        given = None if gradient_scale is None else tf.constant(gradient_scale)
        numbers = tf.constant(RATE, tf.float32), tf.constant(count, tf.int64)
        updates.apply(Gradient(tf.constant(gradient), *numbers, given))
        expected = RULES[rule].equation(settings, parts)
        assert expected.keys() == {"weights", *updates.slots}
        for name, value in expected.items():
            found = (weights if name == "weights" else updates.slots[name]).numpy()
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=2e-4 * RATE, err_msg=f"{name}, update {count}")


def test_with_muon_adam_matrices_move_as_with_muon_and_all_other_weights_as_with_adam():
    random = np.random.default_rng(0)
    start, factors = random.normal(size=LAYOUT.length), LAYOUT.factors([("wide", 3.0)])
    gradients = random.normal(size=[3, LAYOUT.length])
    places = LAYOUT.matrices(("conv", "wide"))
    weights = {}
    for name, own, rate, matrices in (
        ("muon_adam", {"rate_of_adam": 0.2, "beta_2": 0.9}, RATE, places),
        ("muon", {"rate_of_nesterov": 5.0}, RATE, places),
        ("adam", {"beta_2": 0.9}, 0.2 * RATE, []),
    ):
        weights[name] = tf.Variable(start, dtype=tf.float32)
        rule = make_rule(of(rule=name, **own).optimizer, weights[name], factors, matrices=matrices)
        for number, gradient in enumerate(gradients):
            numbers = tf.constant(rate), tf.constant(number, tf.int64), tf.constant(0.5)
            rule.apply(Gradient(tf.constant(gradient, tf.float32), *numbers))
    in_matrices = np.zeros(LAYOUT.length, bool)
    for begin, rows, columns in places:
        in_matrices[begin : begin + rows * columns] = True
    expected = np.where(in_matrices, weights["muon"].numpy(), weights["adam"].numpy())
    np.testing.assert_allclose(weights["muon_adam"].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(expected - start).min() > 0.0


def test_a_share_scales_what_other_weights_move_and_not_the_size_of_a_matrix_step():
    moved = {}
    for gradient_scale in (1.0, 0.25):
        weights = tf.Variable(tf.zeros([10]))
        rule = make_rule(of().optimizer, weights, np.ones(10, np.float32), matrices=[Matrix(0, 3, 2)])
        numbers = tf.constant(RATE), tf.constant(0, tf.int64), tf.constant(gradient_scale)
        rule.apply(Gradient(tf.constant(np.linspace(-1, 2, 10), tf.float32), *numbers))
        moved[gradient_scale] = weights.numpy()
    np.testing.assert_allclose(moved[0.25][6:], moved[1.0][6:] / 4, rtol=1e-5)
    np.testing.assert_allclose(moved[0.25][:6], moved[1.0][:6], rtol=1e-4)


@pytest.mark.parametrize("mode", ["layers", "width"])
def test_it_is_refused_where_the_network_is_divided_among_workers(mode):
    with pytest.raises(UserError, match="optimizer.rule: got 'muon': it needs whole matrices, but mode .* divides the"):
        build_config(overrides={"optimizer.rule": "muon", "mode.name": mode})


def test_each_matrix_is_whole_on_one_parameter_server():
    places = [Matrix(6, 12, 4), Matrix(58, 3, 7)]  # of 79 weights, where the second half begins with 40
    whole = InitialState(np.arange(79.0), np.ones(79), np.zeros(4), np.zeros(4), tuple(places))
    first, second = whole.split(2)
    assert (len(first.weights), first.matrices) == (54, (Matrix(6, 12, 4),)), "54 is nearer to 40 than 6 is"
    assert (len(second.weights), second.matrices) == (25, (Matrix(4, 3, 7),))
    assert np.concatenate([first.weights, second.weights]).tolist() == whole.weights.tolist()
    assert [len(part.weights) for part in replace(whole, matrices=()).split(2)] == [40, 39]


def test_a_division_is_found_if_there_is_one_and_else_refused():
    layers = [Matrix(0, 784, 512), Matrix(401_920, 512, 256), Matrix(533_248, 256, 10)]
    assert ends_of_shards(535_818, 3, layers) == [401_408, 532_992, 535_818]
    whole = InitialState(np.zeros(50), np.ones(50), np.zeros(4), np.zeros(4), (Matrix(0, 12, 4),))
    assert [len(part.weights) for part in whole.split(3)] == [48, 1, 1]
    with pytest.raises(UserError, match="cluster.parameter_servers: got 4: .* leave no weights for the last server"):
        whole.split(4)


@pytest.mark.parametrize("servers", [1, 2, 5, 7])
def test_without_matrices_all_parts_are_equally_long(servers):
    ends = ends_of_shards(23, servers, [])
    assert np.diff([0, *ends]).tolist() == [len(part) for part in np.array_split(np.zeros(23), servers)]


def test_shards_change_matrices_as_one_shard_does():
    random = np.random.default_rng(0)
    places = tuple(LAYOUT.matrices(("conv", "wide")))
    start = random.normal(size=LAYOUT.length).astype(np.float32)
    factors = LAYOUT.factors([("wide", 3.0)])
    gradients = random.normal(size=[2, LAYOUT.length]).astype(np.float32)
    made = {}
    for servers in (1, 2):
        parts = InitialState(start, factors, np.zeros(2), np.zeros(2), places).split(servers)
        ends = np.cumsum([len(part.weights) for part in parts])[:-1]
        weights = [tf.Variable(part.weights) for part in parts]
        settings = of(fixed_norm_every=1, orthogonal_steps=3).optimizer
        rules = [
            make_rule(settings, own, part.factors, matrices=part.matrices)
            for own, part in zip(weights, parts, strict=True)
        ]
        for number, gradient in enumerate(gradients):
            for rule, part in zip(rules, np.split(gradient, ends), strict=True):
                rule.apply(Gradient(tf.constant(part), tf.constant(RATE), tf.constant(number, tf.int64)))
        made[servers] = np.concatenate([own.numpy() for own in weights])
    np.testing.assert_allclose(made[2], made[1], rtol=1e-5, atol=1e-6)


def test_a_frozen_matrix_keeps_its_norm():
    begin, rows, columns = place = LAYOUT.matrices(("conv",))[0]
    weights = tf.Variable(np.ones(LAYOUT.length, np.float32))
    factors = LAYOUT.factors([("conv", 0.0)])
    rule = make_rule(of(fixed_norm_every=1).optimizer, weights, factors, matrices=[place])
    rule.apply(Gradient(tf.ones([LAYOUT.length]), tf.constant(RATE), tf.constant(0, tf.int64)))
    assert (weights.numpy()[begin : begin + rows * columns] == 1).all()


def test_a_fixed_norm_is_refused_with_a_method_that_would_take_it_for_a_step():
    with pytest.raises(UserError, match="optimizer.fixed_norm_every: got 1: staleness method gap_aware would treat"):
        build_config(
            overrides={"optimizer.rule": "muon", "optimizer.fixed_norm_every": 1, "staleness.method": "gap_aware"}
        )


def test_matrices_get_a_fixed_norm_before_every_nth_update():
    random = np.random.default_rng(0)
    start = random.normal(size=LAYOUT.length).astype(np.float32)
    begin, rows, columns = place = LAYOUT.matrices(("conv",))[0]
    moved = {}
    for every in (0, 2):
        weights = tf.Variable(start)
        rule = make_rule(of(fixed_norm_every=every).optimizer, weights, LAYOUT.factors([]), matrices=[place])
        moved[every] = []
        for number in range(2):
            before = weights.numpy()
            rule.apply(Gradient(tf.ones([LAYOUT.length]), tf.constant(RATE), tf.constant(number, tf.int64)))
            moved[every].append(weights.numpy() - before)
    expected = moved[0][0].copy()
    kernel = start[begin : begin + rows * columns]
    expected[begin : begin + rows * columns] += kernel * (columns**0.5 / np.linalg.norm(kernel) - 1)
    np.testing.assert_allclose(moved[2][0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        moved[2][1], moved[0][1], rtol=1e-4, atol=1e-5, err_msg="the second update is not divisible"
    )


def test_fewer_steps_are_the_iteration_of_the_source_that_many_times():
    x = np.random.default_rng(1).normal(size=(8, 6))
    ours = np.asarray(orthogonal(tf.constant(x, tf.float32), 1))
    x /= np.linalg.norm(x)
    gram = x @ x.T
    np.testing.assert_allclose(ours, 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x, atol=1e-5)


@pytest.mark.parametrize("gradient_scale", [None, 0.3])
def test_rows_of_tables_with_a_gradient_take_the_step_of_the_weights_outside_of_matrices(gradient_scale):
    random = np.random.default_rng(0)
    settings = of(rule="muon_adam", rate_of_adam=0.4).optimizer
    rows = tf.Variable(random.normal(size=(5, 3)).astype(np.float32))
    updates = RowsByFormula(settings, rows)
    for count, indices in enumerate(([1, 3], [3, 0], [3])):
        gradient = random.normal(size=(len(indices), 3)).astype(np.float32)
        variables = {"weights": rows, **updates.slots}
        was = {name: variable.numpy() for name, variable in variables.items()}
        of_rows = {name: value[indices].ravel() for name, value in was.items()}
        slots, factors = {name: of_rows[name] for name in updates.slots}, np.ones(gradient.size)
        parts = UpdateParts(
            of_rows["weights"], gradient.ravel(), slots, RATE, count, factors, np.zeros(gradient.size), gradient_scale
        )
        scale = None if gradient_scale is None else tf.constant(gradient_scale)
        numbers = tf.constant(RATE, tf.float32), tf.constant(count, tf.int64), scale
        updates.apply(tf.constant(indices, tf.int64), Gradient(tf.constant(gradient), *numbers))
        for name, value in RULES["muon_adam"].equation(settings, parts).items():
            expected = was[name]
            expected[indices] = value.reshape(-1, 3)
            np.testing.assert_allclose(variables[name].numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)
