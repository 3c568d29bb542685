"""The network that takes any inputs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.build import build
from ps_cluster.models.flat import FlatNetwork, flatten, statistics_of

DRAW = np.random.default_rng(0)
TABLE = {
    "numbers": ArrayField("float32", (3,), (0.0,) * 3, (1.0,) * 3),
    "categories": ArrayField("int32", (2,), codes=(4, 30)),
}
ROWS = {"numbers": DRAW.normal(size=(5, 3)).astype(np.float32), "categories": DRAW.integers(0, 4, (5, 2), np.int32)}


def made(inputs, **settings):
    spec = ExampleSpec(inputs, ArrayField("uint8", ()), classes=("a", "b", "c"))
    chosen = NETWORKS["mlp"].Settings(name="mlp", precision="float32", **settings)
    return build(chosen, spec, seed=0)


@pytest.mark.parametrize(
    ("field", "rows"),
    [
        (ArrayField("float64", (4,), (5.0,) * 4, (2.0,) * 4), DRAW.normal(5, 2, (6, 4))),
        (ArrayField("int64", (4,)), DRAW.integers(0, 9, (6, 4))),
        (ArrayField("bool", (4, 2)), DRAW.integers(0, 2, (6, 4, 2)) == 1),
        (ArrayField("uint8", (5, 4, 3), (9.0,) * 3, (0.0, 1.0, 1.0)), DRAW.integers(0, 255, (6, 5, 4, 3), np.uint8)),
        (ArrayField("float32", (), (1.0,), (2.0,)), DRAW.normal(size=6).astype(np.float32)),
    ],
)
def test_it_takes_one_input_of_any_form(field, rows):
    scores = made({"x": field})(tf.constant(rows), training=False)
    assert scores.shape == (6, 3) and np.isfinite(scores).all()


def test_numbers_are_standardised_inside():
    model = made({"x": ArrayField("float32", (2,), (5.0, -1.0), (2.0, 0.0))})
    inner = keras.Model(model.input, model.get_layer("x_norm").output)
    np.testing.assert_allclose(inner(np.array([[7.0, 3.0]], np.float32)), [[1, 4]], rtol=1e-6)


def test_each_place_of_codes_has_an_embedding_of_its_own():
    model = made(TABLE)
    tables = [tuple(weight.shape) for weight in model.weights if "embeddings" in weight.path]
    assert tables == [(4, 2), (30, 5)]


@pytest.mark.filterwarnings("error")
def test_gradients_reach_the_embeddings_of_a_flat_network():
    network, model = FlatNetwork(made(TABLE, hidden=(8,))), made(TABLE, hidden=(8,))
    weights, statistics = (tf.constant(flatten(v)) for v in (model.trainable_variables, statistics_of(model)))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        inputs = {name: tf.constant(rows) for name, rows in ROWS.items()}
        outputs = network.forward(weights, statistics, inputs, tf.constant([0, 1])).outputs
        loss = tf.reduce_sum(outputs**2)
    gradient = np.asarray(tf.convert_to_tensor(tape.gradient(loss, weights)))
    assert gradient.shape == weights.shape and np.count_nonzero(gradient[: 4 * 2]) > 0


def test_hidden_layers_and_dropout_are_settings():
    model = made(TABLE, hidden=(7, 5, 3), dropout=0.5)
    assert [layer.units for layer in model.layers if isinstance(layer, keras.layers.Dense)] == [7, 5, 3, 3]
    assert sum(isinstance(layer, keras.layers.Dropout) for layer in model.layers) == 3
