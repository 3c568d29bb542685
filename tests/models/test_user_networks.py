"""Networks that users bring: what can't be trained here is refused by name."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.api.networks import write_network
from ps_cluster.config import user_code
from ps_cluster.config.networks import NETWORKS, NetworkSettings
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.models.build import build
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.models.fused_layers import with_fused_layers
from ps_cluster.models.user_networks import check_network
from tests.helpers.plain_keras import LAYERS, spec_of, stack

SPEC = spec_of("row")


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


class Bare(keras.Model):
    """It has no layers."""

    def __init__(self):
        super().__init__()
        self.line = self.add_weight(shape=(6, 3), name="line")

    def call(self, row):
        return keras.ops.softmax(row @ self.line)


class PerClass(keras.metrics.Metric):
    def update_state(self, labels, scores, sample_weight=None):
        pass

    def result(self):
        return {"a": 0.0}


def compiled(**given):
    model = stack()
    model.compile(**given)
    return model


def without_gradient(labels, scores):
    return keras.ops.cast(keras.ops.argmax(scores, -1), "float32")


def misspelt(labels, scores):
    return keras.ops.sun(scores)


def of_two(labels, scores):
    return labels[:, 1]


def probabilities_before_the_last_layer():
    row = keras.Input([6])
    inner = keras.Sequential([keras.Input([6]), LAYERS.Dense(3), LAYERS.Softmax(name="end")], name="inner")
    side = LAYERS.Dense(3)(row)
    return keras.Model(row, LAYERS.Reshape([3])(inner(row + 0 * keras.ops.sum(side))))


SPARSE = "sparse_categorical_crossentropy"
REFUSED = [
    (lambda: 7, "it returns int, not a keras.Model"),
    (
        lambda: keras.Sequential([keras.Input([6]), LAYERS.Dense(2)]),
        "2 numbers .* for 3 numbers .3 classes.: end it with",
    ),
    (several, "it returns 2 outputs: compile"),
    (lambda: keras.Sequential([keras.Input([6]), LAYERS.Dense(3, "softmax", name="end")]), "end.*' returns prob"),
    (
        lambda: stack(LAYERS.SpectralNormalization(LAYERS.Dense(4, name="hidden"))),
        "changes the weight '.*hidden/kernel'",
    ),
    (lambda: stack(LAYERS.Dense(4, kernel_constraint="max_norm", name="hidden")), "'.*hidden/kernel' has a .*MaxNorm"),
    (lambda: OwnStep([keras.Input([6]), LAYERS.Dense(3)]), "has a train_step of its own"),
    (lambda: stack(LAYERS.Dense(4, dtype="mixed_float16", name="half")), "layer 'half' computes in float16"),
    (lambda: stack(LAYERS.Dense(4, dtype="float64", name="wide")), "'.*wide/kernel' is float64"),
    (lambda: stack(LAYERS.BatchNormalization(synchronized=True, name="norm")), "layer 'norm' has synchronized=True"),
    (lambda: stack(Unseeded()), "draws random numbers without a seed generator of the model"),
    (lambda: stack(Counter()), "changes the int32 variable '.*count'"),
    (lambda: keras.Sequential([keras.Input([6]), LAYERS.Lambda(lambda row: row[:, :3])]), "no weights to train"),
    (lambda: Unsaved(np.tanh), "no config"),
    (probabilities_before_the_last_layer, "inner.*' returns probabilities"),
    (Bare, "returns probabilities"),
    (lambda: stack(LAYERS.BatchNormalization(renorm=True, name="norm")), "layer 'norm' has renorm=True"),
    (lambda: compiled(loss=misspelt), "the loss of its compile.. fails: AttributeError"),
    (lambda: compiled(loss=without_gradient), "the loss of its compile.. has no gradient"),
    (lambda: compiled(loss=keras.losses.CategoricalHinge(reduction=None)), "is of shape .5., not one number"),
    (lambda: compiled(loss=SPARSE, metrics=[of_two]), "metrics of its compile.. fail: metric 'of_two'"),
    (lambda: compiled(loss=SPARSE, metrics=["presicion"]), "metrics of its compile.. fail: .*presicion"),
    (lambda: compiled(loss=SPARSE, metrics=[keras.metrics.F1Score()]), "metric 'f1_score' of its compile.. is of sh"),
    (lambda: compiled(loss=SPARSE, metrics=[PerClass(name="each")]), "metric 'each' of its compile.. is a dictionary"),
]


@pytest.mark.parametrize(("made", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_what_would_be_lost_in_training_is_refused_by_name(made, told):
    with pytest.raises((ValueError, NotImplementedError), match=told):
        check_network(made(), SPEC)


def test_a_multi_label_network_returns_probabilities_only_with_a_loss_that_takes_them():
    labels = ExampleSpec(SPEC.inputs, ArrayField("uint8", (3,)), "multi-label", SPEC.classes)
    model = stack(LAYERS.Dense(3), LAYERS.Activation("sigmoid"))
    check_network(model, labels)
    ends = keras.Sequential([model, LAYERS.Activation("sigmoid")])
    with pytest.raises(ValueError, match="returns probabilities .sigmoid.*compile.. it with a loss that takes"):
        check_network(ends, labels)
    ends.compile(loss="binary_crossentropy")
    head, probabilities = head_of(labels, model=check_network(ends, labels)), tf.constant([[0.4, 0.6, 0.1]])
    targets = head.targets(tf.constant([[0, 1, 1]]))
    assert float(head.metric(targets, probabilities)[0]) == pytest.approx(2 / 3)
    assert head.prediction_head.prediction(probabilities).numpy() == pytest.approx(probabilities.numpy())


@pytest.mark.filterwarnings("ignore:(?s).*softmax over axis -1:UserWarning")
@pytest.mark.parametrize(
    ("end", "loss", "told"),
    [
        (LAYERS.Dense(1, "softmax"), "binary_crossentropy", "a softmax of one number, which is alw"),
        (LAYERS.Dense(1), "sparse_categorical_crossentropy", "compares classes with each other"),
        (LAYERS.Dense(1, "sigmoid"), "categorical_crossentropy", "compares classes with each other"),
        (LAYERS.Dense(3), "mse", "asks for 2 numbers .2 classes.: end it with Dense.2. or Dense.1."),
    ],
)
def test_an_end_that_does_not_tell_two_classes_apart_is_refused(end, loss, told):
    model = keras.Sequential([keras.Input([6]), end])
    model.compile(loss=loss)
    with pytest.raises(ValueError, match=told):
        check_network(model, replace(SPEC, classes=("no", "yes")))


def test_a_flag_of_a_single_variable_holds_in_the_copy_to_compute_with():
    plain = stack(LAYERS.BatchNormalization())
    plain.layers[0].gamma.trainable = False
    fused = with_fused_layers(plain)
    assert fused is not plain
    assert [v.path for v in fused.trainable_variables] == [v.path for v in plain.trainable_variables]


def test_a_variable_that_the_model_does_not_know_is_named():
    hidden = LAYERS.Dense(6, name="lost")
    hidden.build([None, 6])
    model = stack(LAYERS.Lambda(lambda row: hidden(row), output_shape=(6,)))
    with pytest.raises(ValueError, match="it uses the variable 'lost/kernel', which is not among"):
        check_network(model, SPEC)


WITH_A_LOSS_THAT_FAILS = """import keras
    def loss(labels, scores):
        return keras.ops.sun(scores)
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(3)])
    model.compile(loss=loss)
    return model"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return None", "it returns nothing .is there a 'return'.., not a keras.Model"),
        ("1 / 0", "mine.py:2: ZeroDivisionError: division by zero"),
        ("helper(1)\n\ndef helper(x):\n    x.nope", "mine.py:5: AttributeError: 'int' object has no attribute 'nope'"),
        ("examples.image('mine')", "'mine' takes images"),
        (WITH_A_LOSS_THAT_FAILS, "mine.py:4: the loss of its compile.. fails: AttributeError"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(tmp_path, body, told):
    (tmp_path / "mine.py").write_text(f"def build(examples, settings):\n    {body}\n")
    user_code.trust(tmp_path / "mine.py")
    with pytest.raises(UserError, match=told) as error:
        build(NetworkSettings(name=f"{tmp_path}/mine.py:build", precision="float32"), SPEC, seed=0)
    assert str(error.value).startswith("model.name: ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("signature", "given"),
    [
        ("()", ()), ("(examples)", (SPEC,)), ("(examples, settings)", (SPEC, "settings")), ("(*both)", (SPEC, "settings")),
        ("(form, settings=None)", (SPEC, "settings")), ("(width=3, depth=2)", ()), ("(examples=None)", (SPEC,)),
    ],
)  # fmt: skip
def test_a_network_is_a_function_of_nothing_of_examples_or_of_examples_and_settings(tmp_path, signature, given):
    """In a file, as from Python, by the same way."""
    (tmp_path / "mine.py").write_text(
        f"def build{signature}:\n    return tuple(one for one in locals().values() if type(one) not in (int, tuple)) or "
        "dict(locals()).get('both', ())\n"
    )
    user_code.trust(tmp_path / "mine.py")
    assert NETWORKS[f"{tmp_path}/mine.py:build"].build(SPEC, "settings") == given
    names = {}
    exec((tmp_path / "mine.py").read_text(), names)
    sent = write_network(names["build"], tmp_path)
    user_code.trust(user_code.parse(sent).file)
    assert NETWORKS[sent].build(SPEC, "settings") == given


@pytest.mark.parametrize(("signature", "count"), [("(a, b, c)", "3 arguments"), ("(*, width)", "1 argument")])
def test_a_function_that_takes_something_else_is_told_in_the_users_words(tmp_path, signature, count):
    (tmp_path / "mine.py").write_text(f"def build{signature}:\n    pass\n")
    user_code.trust(tmp_path / "mine.py")
    with pytest.raises(UserError) as error:
        NETWORKS[f"{tmp_path}/mine.py:build"]
    assert str(error.value) == (
        f"model.name: build{signature} in mine.py takes {count}: the function of a network takes no argument, "
        "or `examples`, or `examples` and `settings`"
    )


def test_each_call_of_a_dropout_draws_a_mask_of_its_own_from_the_random_state_that_it_is_given():
    row, twice = keras.Input([100]), LAYERS.Dropout(0.5)
    drops = [LAYERS.Dropout(0.5), LAYERS.Dropout(0.5), twice, twice]
    network = FlatNetwork(keras.Model(row, LAYERS.Concatenate()([drop(row) for drop in drops])))

    def masks(step):
        given = tf.zeros([0]), tf.zeros([0]), {"x": tf.ones([1, 100])}, tf.constant([7, step])
        return [tuple(mask) for mask in np.asarray(network.forward(*given).outputs).reshape(4, 100) > 0]

    assert len({mask for step in (3, 4, 5) for mask in masks(step)}) == 4 * 3
    assert masks(3) == masks(3)


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
