"""One worker's first updates are those of plain Keras on the same batches, for what users build networks of."""

import keras
import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.launch.network_check import NetworkFacts, with_rule_of_compile
from ps_cluster.models.build import dtype_policy
from ps_cluster.models.compiled_optimizer import optimizer_settings, schedule_settings
from ps_cluster.models.user_networks import check_network, unused_parts
from ps_cluster.training.learning_rate import expected_rates
from tests.helpers.exhaustive import mostly
from tests.helpers.plain_keras import LAYERS, ROWS, SCORES, differences, spec_of, stack

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
IN_BFLOAT16 = 0.005  # a graph rounds once where Keras, step by step, rounds after each operation


def attending():
    """Return a network with two inputs, whose order is not that of their names."""
    row, words = keras.Input([6], name="row"), keras.Input([3], name="words", dtype="int32")
    x = LAYERS.Embedding(7, 4)(words)
    x = LAYERS.LayerNormalization()(x + LAYERS.MultiHeadAttention(2, 3, dropout=0.2)(x, x))
    both = LAYERS.Concatenate()([row, LAYERS.GlobalAveragePooling1D()(x)])
    return keras.Model([words, row], LAYERS.Dense(3)(both))


class Subclassed(keras.Model):
    """It takes `training` and hands it on to no layer: they find it in Keras's context."""

    def __init__(self):
        super().__init__()
        self.hidden, self.drop, self.scores = LAYERS.Dense(5), LAYERS.Dropout(0.4), LAYERS.Dense(3)

    def call(self, row, training=None):
        return self.scores(self.drop(keras.ops.tanh(self.hidden(row))))


class WithoutTraining(Subclassed):
    """Its dropout does nothing, in Keras either."""

    def call(self, row):
        return super().call(row)


class Counting(LAYERS.Layer):
    """A moving mean of a user's own, which is no BatchNormalization."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def call(self, row, training=None):
        if training:
            self.mean.assign(0.8 * self.mean + 0.2 * keras.ops.mean(row, 0))
        self.add_loss(0.01 * keras.ops.sum(row**2))
        return row - self.mean


def of_one_layer():
    return stack(LAYERS.Dense(8, activation="relu", dtype="mixed_bfloat16"), LAYERS.Dense(4))


def of_all():
    with dtype_policy("mixed_bfloat16"):
        return stack(LAYERS.Dense(8, activation="relu"), LAYERS.LayerNormalization())


def called_twice():
    row = keras.Input([6])
    norm = keras.Sequential([LAYERS.Dense(4), LAYERS.BatchNormalization(momentum=0.7)])
    return keras.Model(row, LAYERS.Dense(3)(norm(row) + norm(2 * row + 1)))


def in_time():
    norm = LAYERS.TimeDistributed(LAYERS.BatchNormalization(momentum=0.8))
    return stack(LAYERS.Embedding(7, 3), norm, LAYERS.Flatten(), of="words")


def frozen(layer):
    layer.trainable = False
    return layer


def rows():
    """Statistics that move, that are adapted before, and that are frozen; a layer that is frozen, and one in a part."""
    adapted, norm = LAYERS.Normalization(), LAYERS.BatchNormalization
    adapted.adapt(ROWS["row"][0])
    partly = norm()
    layers = [adapted, LAYERS.Dense(5), norm(momentum=0.7), frozen(LAYERS.Dense(5)), frozen(norm(momentum=0.5))]
    model = stack(*layers, LAYERS.Dense(4, activation="gelu"), partly)
    partly.gamma.trainable = False
    return model


def images():
    """Statistics of the last axis, of another, and such as are frozen."""
    norm = LAYERS.BatchNormalization
    return stack(LAYERS.Conv2D(3, 3), norm(), norm(axis=1), frozen(norm(momentum=0.5)), LAYERS.Flatten(), of="image")


def noise():
    inner = keras.Sequential([keras.Input([6]), LAYERS.Dense(9), LAYERS.BatchNormalization(), LAYERS.Dropout(0.5)])
    kinds = LAYERS.GaussianNoise(0.3), LAYERS.GaussianDropout(0.3), LAYERS.Dropout(0.5)
    return stack(inner, LAYERS.Activation("gelu"), *(layer for kind in kinds for layer in (LAYERS.Dense(9), kind)))


def losing():
    of_weights = {"kernel_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2"}
    return stack(LAYERS.Dense(5, **of_weights), Counting())


def recurrent():
    words, gru = LAYERS.Embedding(7, 3, mask_zero=True), LAYERS.GRU(3, dropout=0.2, recurrent_dropout=0.2)
    return stack(words, LAYERS.Bidirectional(gru), of="words")


def gated():
    layers = LAYERS.LSTM(4, dropout=0.2, return_sequences=True), LAYERS.GroupNormalization(2), LAYERS.Flatten()
    return stack(LAYERS.Embedding(7, 3), *layers, of="words")


KINDS = {
    "noise, also in a model in the model": (noise, ["row"]),
    "batch norms of rows": (rows, ["row"]),
    "batch norms of images": (images, ["image"]),
    "a batch norm that is called twice": (called_twice, ["row"]),
    "a batch norm at each time": (in_time, ["words"]),
    "regularisers, and state and loss of a layer of one's own": (losing, ["row"]),
    "gru both ways": (recurrent, ["words"]),
    "lstm, and norms of groups": (gated, ["words"]),
    "attention, and two inputs": (attending, ["row", "words"]),
    "a subclassed model": (Subclassed, ["row"]),
    "a subclassed model that takes no training": (WithoutTraining, ["row"]),
}


@pytest.mark.parametrize("kind", mostly(KINDS, *KINDS.keys() - {"gru both ways"}))
def test_updates_are_those_of_keras(kind):
    build, inputs = KINDS[kind]
    assert max(differences(build, inputs)) <= TOLERANCE


@pytest.mark.parametrize("build", [of_one_layer, of_all], ids=["of a layer", "of all"])
def test_updates_in_a_mixed_policy_are_those_of_keras_to_its_rounding(build):
    assert max(differences(build, ["row"])) <= IN_BFLOAT16


def deep():
    return stack(LAYERS.Dense(5, activation="tanh", kernel_regularizer="l2"), LAYERS.BatchNormalization())


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.02, clipnorm=0.05, weight_decay=0.3),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.01, momentum=0.6, nesterov=True, clipvalue=0.02),
    "adam": lambda: keras.optimizers.Adam(0.01, beta_1=0.8, beta_2=0.99, epsilon=1e-4, global_clipnorm=0.1),
    "adam with decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.3),
    "rmsprop with momentum": lambda: keras.optimizers.RMSprop(0.01, 0.7, 0.5, 1e-4, weight_decay=0.3),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.02, epsilon=0.01, weight_decay=0.3),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.03, l2_regularization_strength=0.2),
    "ftrl with another power": lambda: keras.optimizers.Ftrl(0.1, -0.3, initial_accumulator_value=0.02),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_keras_equals_one_rule_alone(name):
    optimizer = OPTIMIZERS[name]()
    equal = [rule.name for rule in RULES if rule.of_keras(type(optimizer), optimizer.get_config()) is not None]
    assert equal == [name.split()[0]]


def settings_of(optimizer):
    model = stack()
    model.compile(optimizer, "mse")
    return {f"optimizer.{name}": value for name, value in optimizer_settings(model).items()}


PLAIN = {"weight_decay": 0.0, "clip_norm": None, "global_clip_norm": None, "clip_value": None}
SETTINGS_OF = {
    "sgd": {"rule": "sgd", "learning_rate": 0.02, "clip_norm": 0.05, "weight_decay": 0.3},
    "momentum": {"rule": "momentum", "learning_rate": 0.01, "momentum": 0.9},
    "nesterov": {"rule": "nesterov", "learning_rate": 0.01, "momentum": 0.6, "clip_value": 0.02},
    "adam": {
        "rule": "adam", "learning_rate": 0.01, "momentum": 0.8, "beta_2": 0.99, "epsilon": 1e-4, "global_clip_norm": 0.1,
    },
    "adam with decay": {
        "rule": "adam", "learning_rate": 0.01, "momentum": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "weight_decay": 0.3,
    },
    "rmsprop with momentum": {
        "rule": "rmsprop", "learning_rate": 0.01, "momentum": 0.5, "rho": 0.7, "epsilon": 1e-4, "weight_decay": 0.3,
    },
    "adagrad": {  # Keras adds epsilon inside the root
        "rule": "adagrad", "learning_rate": 0.1, "initial_accumulator_value": 0.02 + 0.01, "epsilon": 1e-30,
        "weight_decay": 0.3,
    },
    "ftrl": {
        "rule": "ftrl", "learning_rate": 0.1, "l1": 0.03, "l2": 0.2, "learning_rate_power": -0.5,
        "initial_accumulator_value": 0.1,
    },
    "ftrl with another power": {
        "rule": "ftrl", "learning_rate": 0.1, "l1": 0.0, "l2": 0.0, "learning_rate_power": -0.3,
        "initial_accumulator_value": 0.02,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_keras_has_these_settings_here(name):
    expected = {f"optimizer.{key}": value for key, value in (PLAIN | SETTINGS_OF[name]).items()}
    assert settings_of(OPTIMIZERS[name]()) == expected


@pytest.mark.parametrize("name", mostly(OPTIMIZERS, "nesterov", "adam", "ftrl"))
def test_what_compile_says_of_an_optimizer_makes_the_same_updates_here(name):
    settings = settings_of(OPTIMIZERS[name]())
    assert max(differences(deep, ["row"], settings, optimizer=OPTIMIZERS[name]())) <= TOLERANCE


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_has_its_slots_says_the_same_as_before(name):
    optimizer = OPTIMIZERS[name]()
    settings = settings_of(optimizer)
    optimizer.build(stack().trainable_variables)
    assert settings_of(optimizer) == settings


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda of: keras.optimizers.Adam(0.01, beta_1=of(0.75), epsilon=of(0.5), clipnorm=of(2)),
        lambda of: keras.optimizers.SGD(0.01, momentum=0.5, weight_decay=of(0.25), clipvalue=of(2)),
        lambda of: keras.optimizers.Adagrad(0.01, initial_accumulator_value=of(0.25), epsilon=of(0.5)),
    ],
)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_of_numpy_in_an_optimizer_become_numbers_that_json_can_hold(optimizer, kind):
    facts = NetworkFacts().model_copy(update={"optimizer": settings_of(optimizer(kind))})
    exact = settings_of(optimizer(lambda value: kind(value).item()))
    assert NetworkFacts.model_validate_json(facts.model_dump_json()).optimizer == exact


def without_decay(made=keras.optimizers.AdamW, **given):
    optimizer = made()
    optimizer.exclude_from_weight_decay(**given)
    return optimizer


def with_own_step(optimizer):
    optimizer.update_step = lambda gradient, variable, rate: variable.assign_sub(gradient)
    return optimizer


def used(optimizer):
    model = stack()
    model.compile(optimizer, "mse", run_eagerly=True)
    model.train_on_batch(ROWS["row"][0], np.zeros([8, 3]))
    return optimizer


def test_variables_without_decay_of_an_optimizer_that_has_none_change_nothing():
    assert settings_of(without_decay(keras.optimizers.Adam, var_names=["bias"])) == settings_of(keras.optimizers.Adam())


def test_an_optimizer_that_has_made_updates_is_taken_and_what_it_keeps_of_them_is_said_to_be_lost():
    adam = keras.optimizers.AdamW()
    assert settings_of(used(adam)) == settings_of(keras.optimizers.AdamW())
    model = stack()
    model.compile(adam, "mse")
    told = unused_parts(check_network(model, spec_of("row")), build_config())
    assert any("the optimizer of compile() has made 1 update: its moments are not used" in line for line in told)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (keras.optimizers.Lion, r"\(Lion\) is not known, and no rule .* is equivalent to it: set optimizer.rule \("),
        (lambda: keras.optimizers.SGD(OwnSchedule()), r"is a schedule, OwnSchedule, which is not one of Keras's: set"),
        (lambda: keras.optimizers.Adam(amsgrad=True), r"\(Adam\) has amsgrad=True"),
        (lambda: keras.optimizers.Ftrl(beta=0.1), r"\(Ftrl\) has beta=0.1"),
        (lambda: keras.optimizers.Ftrl(l2_shrinkage_regularization_strength=0.1), r"has l2_shrinkage_regularization_"),
        (lambda: keras.optimizers.Ftrl(OF_KERAS.CosineDecay(0.1, 100)), r"\(Ftrl\) has a schedule \(CosineDecay\) as"),
        (lambda: keras.optimizers.SGD(use_ema=True), r"\(SGD\) has use_ema=True"),
        (lambda: without_decay(var_names=["bias"]), r"\(AdamW\) has exclude_from_weight_decay, which was set after"),
        (lambda: without_decay(var_list=[keras.Variable(1.0)]), r"has exclude_from_weight_decay, which was set after"),
        (lambda: with_own_step(keras.optimizers.SGD()), r"\(SGD\) has update_step, which was set after the opt"),
    ],
)
def test_an_optimizer_that_no_rule_stands_for_is_refused_with_what_to_set(optimizer, said):
    with pytest.raises(ValueError, match=said):
        settings_of(optimizer())


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1

    def get_config(self):
        return {}


OF_KERAS = keras.optimizers.schedules
SCHEDULES = [
    OF_KERAS.CosineDecay(1e-3, 100, alpha=0.1, warmup_target=0.3, warmup_steps=5),
    OF_KERAS.CosineDecayRestarts(0.1, 10),
    OF_KERAS.ExponentialDecay(0.1, 10, 0.9, staircase=True),
    OF_KERAS.InverseTimeDecay(0.1, 10, 0.9),
    OF_KERAS.PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.1]),
    OF_KERAS.PolynomialDecay(0.1, 30, power=2),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: type(one).__name__)
def test_every_update_has_the_rate_of_the_schedule_that_was_compiled(schedule):
    model = stack()
    model.compile(keras.optimizers.Adam(schedule), "mse")
    chosen = {"optimizer.rule": "compiled", "optimizer.learning_rate": None, "schedule.kind": "compiled"}
    compiled = build_config(None, chosen)
    compiled = compiled.with_values({"schedule.warmup_fraction": 0.0, "training.steps": 200})
    facts = NetworkFacts(optimizer=optimizer_settings(model), schedule=schedule_settings(model))
    updates = np.arange(0, 200, 7)
    rates = expected_rates(with_rule_of_compile(compiled, facts), 200)(updates)
    np.testing.assert_allclose(rates, [float(schedule(update)) for update in updates], rtol=1e-5, atol=1e-7)


def masked():
    """Return a network whose outputs are masked: a row of zeros does not count."""
    return stack(LAYERS.Masking(), LAYERS.Dense(5, "tanh"))


def test_what_a_mask_leaves_out_is_left_out_of_the_loss(monkeypatch):
    rows = ROWS["row"].copy()
    rows[:, ::3] = 0
    monkeypatch.setitem(ROWS, "row", rows)
    assert max(differences(compiled(SCORES, build=masked), ["row"])) <= TOLERANCE


def test_classes_have_the_weights_of_the_settings_by_name_or_label_and_labels_are_smoothed():
    settings = {"training.class_weights": {"a": 0.3, "2": 4.0}, "training.label_smoothing": 0.2}
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
    weights = {0: 0.3, 1: 1, 2: 4}
    found = differences(deep, ["row"], settings, loss=loss, target=lambda y: np.eye(3)[y], class_weight=weights)
    assert max(found) <= TOLERANCE


def compiled(loss, build=deep):
    def compiled_build():
        model = build()
        model.compile(loss=loss)
        return model

    return compiled_build


def distances(labels, outputs):
    return keras.ops.sum(keras.ops.abs(keras.ops.one_hot(keras.ops.cast(labels, "int32"), 3) - outputs), -1)


def test_a_loss_of_ones_own_is_that_of_compile():
    assert max(differences(compiled(distances), ["row"], weighted=True)) <= TOLERANCE


def two_heads():
    row = keras.Input([6])
    hidden = LAYERS.Dense(5, activation="tanh")(row)
    model = keras.Model(row, {name: LAYERS.Dense(3, name=name)(hidden) for name in ("scores", "side")})
    model.compile(loss={"side": distances, "scores": SCORES}, loss_weights={"scores": 0.7, "side": 0.1})
    return model


def test_several_outputs_have_their_losses_and_loss_weights_against_one_target():
    found = differences(two_heads, ["row"], target=lambda labels: {"scores": labels, "side": labels})
    assert max(found) <= TOLERANCE
