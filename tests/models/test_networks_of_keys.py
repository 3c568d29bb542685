"""The networks whose inputs are keys: dlrm and two_tower."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.models.build import build
from ps_cluster.models.flat import FlatNetwork, flatten, statistics_of

pytestmark = pytest.mark.slow

DRAW = np.random.default_rng(0)
KEYS, NUMBERS = ArrayField("int32", (3,), codes=(5, 40, 7)), ArrayField("float32", (4,), (1.0,) * 4, (2.0,) * 4)
BOTH = {"categories": KEYS, "numbers": NUMBERS}
ROWS = {
    "categories": np.stack([DRAW.integers(0, rows, 6) for rows in KEYS.codes], 1).astype(np.int32),
    "numbers": DRAW.normal(1, 2, (6, 4)).astype(np.float32),
}


def made(
    name, inputs=BOTH, classes=("no", "yes"), objective="classification", target=ArrayField("uint8", ()), **settings
):
    spec = ExampleSpec(inputs, target, objective, classes)
    return build(NETWORKS[name].Settings(name=name, precision="float32", **settings), spec, seed=0)


def tables_of(model):
    return [layer for layer in model.layers if isinstance(layer, keras.layers.Embedding)]


def value(model, layer, rows):
    return np.asarray(keras.Model(model.inputs, model.get_layer(layer).output)(rows))


def test_dlrm_computes_what_the_equations_say():
    model = made("dlrm", row_width=3, bottom=(6,), top=(5,))
    weights = {weight.path: np.asarray(weight) for weight in model.weights}

    def dense(x, name, relu=True):
        y = x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]
        return np.maximum(y, 0) if relu else y

    bottom = dense(dense((ROWS["numbers"] - 1) / 2, "bottom_0"), "bottom_1")
    rows = [weights[f"categories_{place}/embeddings"][ROWS["categories"][:, place]] for place in range(3)]
    vectors = np.stack([bottom, *rows], 1)  # [B, 4, 3]
    products = vectors @ vectors.transpose(0, 2, 1)
    pairs = products[:, *np.tril_indices(4, -1)]
    np.testing.assert_allclose(value(model, "pairs", ROWS), pairs, rtol=1e-4, atol=1e-6)
    scores = dense(dense(np.concatenate([bottom, pairs], 1), "top_0"), "logits", relu=False)
    np.testing.assert_allclose(model(ROWS), scores, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["dlrm", "two_tower"])
def test_each_column_has_one_table_with_a_row_for_each_key(name):
    tables = tables_of(made(name, row_width=6))
    assert [(table.input_dim, table.output_dim) for table in tables] == [(5, 6), (40, 6), (7, 6)]
    assert all(len(table._inbound_nodes) == 1 for table in tables), "each is used once"


@pytest.mark.parametrize("name", ["dlrm", "two_tower"])
@pytest.mark.filterwarnings("error")
def test_gradients_reach_exactly_the_rows_of_the_batchs_keys(name):
    model = made(name)
    network = FlatNetwork(model)
    weights, statistics = (tf.constant(flatten(v)) for v in (model.trainable_variables, statistics_of(model)))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        inputs = {field: tf.constant(rows) for field, rows in ROWS.items()}
        outputs = network.forward(weights, statistics, inputs, tf.constant([0, 1])).outputs
        loss = tf.reduce_sum((outputs - 1) ** 2)
    parts = network.weights.split(tf.convert_to_tensor(tape.gradient(loss, weights)))
    gradients = {path: np.asarray(part) for path, part in zip(network.weights.paths, parts, strict=True)}
    for place in range(3):
        touched = np.flatnonzero(gradients[f"categories_{place}/embeddings"].any(1))
        assert touched.tolist() == np.unique(ROWS["categories"][:, place]).tolist()


@pytest.mark.parametrize("name", ["dlrm", "two_tower"])
@pytest.mark.parametrize("inputs", [BOTH, {"categories": KEYS}])
def test_a_saved_network_is_a_plain_keras_model(name, inputs, tmp_path):
    model = made(name, inputs)
    rows = ROWS if len(inputs) > 1 else ROWS["categories"]
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "model.keras")(rows), model(rows), rtol=1e-6)


def test_two_tower_returns_the_dot_product_of_its_towers():
    model = made("two_tower", tower=(5, 4), first_columns=1)
    weights = {weight.path: np.asarray(weight) for weight in model.weights}
    rows = [weights[f"categories_{place}/embeddings"][ROWS["categories"][:, place]] for place in range(3)]
    parts = {"first": [(ROWS["numbers"] - 1) / 2, rows[0]], "second": rows[1:]}
    vectors = []
    for tower, given in parts.items():
        layers = [(weights[f"{tower}_{one}/kernel"], weights[f"{tower}_{one}/bias"]) for one in ("0", "vector")]
        hidden = np.maximum(np.concatenate(given, 1) @ layers[0][0] + layers[0][1], 0)
        vectors.append(hidden @ layers[1][0] + layers[1][1])
    np.testing.assert_allclose(model(ROWS), (vectors[0] * vectors[1]).sum(1, keepdims=True), rtol=1e-4, atol=1e-7)


def test_half_of_the_columns_are_of_the_first_tower_by_default():
    model = made("two_tower", {"categories": KEYS}, row_width=8)
    assert model.get_layer("first_0").kernel.shape == (8, 64) and model.get_layer("second_0").kernel.shape == (16, 64)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"first_columns": 3}, "give at most 2"),
        ({"inputs": {"user": ArrayField("int32", (1,), codes=(9,))}}, "there is only one"),
        ({"classes": ("a", "b", "c")}, "a dot product is one number"),
    ],
)
def test_examples_that_two_towers_cant_take_are_refused(given, told):
    with pytest.raises(UserError, match=told):
        made("two_tower", **given)


def test_dlrm_has_a_score_for_each_class_one_for_two_classes_and_numbers_for_a_regression():
    assert made("dlrm").output_shape == (None, 1)
    assert made("dlrm", classes=("a", "b", "c")).output_shape == (None, 3)
    numbers = made("dlrm", classes=(), objective="regression", target=ArrayField("float32", (2,)))
    assert numbers.output_shape == (None, 2)


@pytest.mark.parametrize("name", ["dlrm", "two_tower"])
def test_examples_without_keys_are_refused(name):
    with pytest.raises(UserError, match=f"'{name}' can't be built .*: it takes categorical columns, such as those of"):
        made(name, {"numbers": NUMBERS})
