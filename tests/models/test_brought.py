"""Networks that users bring: what can't be trained here is refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.catalogue import doors
from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.catalogue.networks import NetworkSettings
from ps_cluster.errors import UserError
from ps_cluster.models.brought import look_over
from ps_cluster.models.build import build
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.models.fused import with_fused_layers

LAYERS = keras.layers
SPEC = ExampleSpec({"row": Field("float32", (6,))}, Field("uint8", ()), classes=("a", "b", "c"))


def stack(*layers):
    return keras.Sequential([keras.Input([6]), *layers, LAYERS.Dense(3, name="scores")])


def several():
    row = keras.Input([6])
    return keras.Model(row, [LAYERS.Dense(3)(row), LAYERS.Dense(3)(row)])


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return {}


class Unseeded(LAYERS.Layer):
    def call(self, row):
        return row + keras.random.normal(keras.ops.shape(row))


class Counter(LAYERS.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="count")

    def call(self, row):
        self.count.assign(self.count + 1)
        return row


class Unsaved(keras.Model):
    def __init__(self, function):
        super().__init__()
        self.function, self.scores = function, LAYERS.Dense(3)

    def call(self, row):
        return self.scores(self.function(row))

    def get_config(self):
        raise NotImplementedError("no config")


REFUSED = [
    (lambda: 7, "it is int, not a keras.Model"),
    (lambda: keras.Sequential([keras.Input([6]), LAYERS.Dense(2)]), "it returns .*2.*, not 3 numbers"),
    (several, "it returns 2 outputs: compile"),
    (lambda: keras.Sequential([keras.Input([6]), LAYERS.Dense(3, "softmax", name="end")]), "layer 'end' returns prob"),
    (
        lambda: stack(LAYERS.SpectralNormalization(LAYERS.Dense(4, name="hidden"))),
        "changes the weight '.*hidden/kernel'",
    ),
    (lambda: stack(LAYERS.Dense(4, kernel_constraint="max_norm", name="hidden")), "'.*hidden/kernel' has a .*MaxNorm"),
    (lambda: OwnStep([keras.Input([6]), LAYERS.Dense(3)]), "has a train_step of its own"),
    (lambda: stack(LAYERS.Dense(4, dtype="mixed_float16", name="half")), "layer 'half' computes in float16"),
    (lambda: stack(LAYERS.Dense(4, dtype="float64", name="wide")), "'.*wide/kernel' is float64"),
    (lambda: stack(LAYERS.BatchNormalization(synchronized=True, name="norm")), "layer 'norm' has synchronized=True"),
    (lambda: stack(Unseeded()), "draws random numbers without a seed of its own"),
    (lambda: stack(Counter()), "changes the int32 variable '.*count'"),
    (lambda: keras.Sequential([keras.Input([6]), LAYERS.Lambda(lambda row: row[:, :3])]), "no weights to train"),
    (lambda: Unsaved(np.tanh), "no config"),
]


@pytest.mark.parametrize(("made", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_what_would_be_lost_in_training_is_refused_by_name(made, told):
    with pytest.raises((ValueError, NotImplementedError), match=told):
        look_over(made(), SPEC)


def test_a_variable_that_the_model_does_not_know_is_named():
    hidden = LAYERS.Dense(6, name="lost")
    hidden.build([None, 6])
    model = stack(LAYERS.Lambda(lambda row: hidden(row), output_shape=(6,)))
    with pytest.raises(ValueError, match="it uses the variable 'lost/kernel', which is not among"):
        look_over(model, SPEC)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return None", "it is NoneType, not a keras.Model"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("examples.image('mine')", "'mine' takes images"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(tmp_path, body, told):
    (tmp_path / "mine.py").write_text(f"def build(examples, settings):\n    {body}\n")
    doors.trust(tmp_path / "mine.py")
    with pytest.raises(UserError, match=told) as error:
        build(NetworkSettings(name=f"{tmp_path}/mine.py:build", precision="float32"), SPEC, seed=0)
    assert str(error.value).startswith("model.name: ") and "\n" not in str(error.value)


def outputs(model, step):
    network = FlatNetwork(model)
    given = tf.zeros([network.weights.length]), tf.zeros([network.statistics.length])
    return np.asarray(network.forward(*given, {"x": tf.ones([1, 100])}, tf.constant([7, step])).outputs)


def test_two_dropouts_of_one_shape_draw_different_masks_and_one_asked_twice_too():
    row, twice = keras.Input([100]), LAYERS.Dropout(0.5)
    drops = [LAYERS.Dropout(0.5), LAYERS.Dropout(0.5), twice, twice]
    model = keras.Model(row, LAYERS.Concatenate()([drop(row) for drop in drops]))
    masks = {tuple(mask) for step in (3, 4, 5) for mask in outputs(model, step).reshape(4, 100) > 0}
    assert len(masks) == 4 * 3


def test_a_copy_to_compute_with_shares_all_layers_but_the_fused_ones():
    plain = stack(LAYERS.Dense(5), LAYERS.BatchNormalization())
    fused = with_fused_layers(plain)
    assert [one is other for one, other in zip(fused.layers, plain.layers, strict=True)] == [True, False, True]


def test_a_class_of_ones_own_computes_as_it_is_written():
    class Doubling(keras.Sequential):
        def call(self, row, training=None):
            return 2 * super().call(row, training=training)

    model = Doubling([keras.Input([6]), LAYERS.BatchNormalization(), LAYERS.Dense(3)])
    assert with_fused_layers(model) is model
