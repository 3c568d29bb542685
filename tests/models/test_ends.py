"""What a network returns, by its end and its loss: probabilities or scores of two classes, and the units of a regression."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import IN_DEVIATIONS, ArrayField, ExampleSpec
from ps_cluster.models.compiled import CompiledMetrics
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.saved import load_unchanged, predicting
from ps_cluster.models.user_networks import check_network
from tests.helpers.exhaustive import mostly
from tests.helpers.plain_keras import BATCH, RNG, UPDATES, differences

LAYERS = keras.layers
ROW = {"row": ArrayField("float32", (6,))}
REGRESSION = ExampleSpec(ROW, ArrayField("float32", (), (10.0,), (4.0,)), "regression")
TWO = ExampleSpec(ROW, ArrayField("uint8", ()), "classification", ("no", "yes"))


def ending(*end, loss=None, metrics=None):
    """Return a network with this end, compiled if there is a loss."""
    model = keras.Sequential([keras.Input([6]), LAYERS.Dense(5, "tanh"), *end])
    if loss is not None:
        model.compile("sgd", loss, metrics=metrics)
    return model


def reading(model):
    return head_of(REGRESSION, model=model).interpretation


LOSSES = [loss for loss in vars(keras.losses).values() if isinstance(loss, type) and issubclass(loss, keras.Loss)]
OF_NUMBERS = [loss for loss in LOSSES if loss not in (keras.losses.Loss, keras.losses.CTC)]
IN_ANY_UNITS = {keras.losses.MeanSquaredError, keras.losses.MeanAbsoluteError}


@pytest.mark.parametrize("loss", OF_NUMBERS, ids=lambda loss: loss.__name__)
def test_of_keras_losses_only_the_squared_and_the_absolute_error_are_trained_in_standard_deviations(loss):
    made = loss()
    found = reading(ending(LAYERS.Dense(1), loss=made))
    assert found == (IN_DEVIATIONS if loss in IN_ANY_UNITS else f"targets in their own units (loss {made.name})")


def own(targets, outputs):
    return keras.ops.mean((targets - outputs) ** 2)


class OwnSquares(keras.losses.MeanSquaredError):
    def call(self, targets, outputs):
        return 2 * super().call(targets, outputs)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", IN_DEVIATIONS),
        ("MAE", IN_DEVIATIONS),
        (keras.losses.mean_squared_error, IN_DEVIATIONS),
        ("poisson", "targets in their own units (loss poisson)"),
        (own, "targets in their own units (loss own)"),
        (OwnSquares(), "targets in their own units (loss mean_squared_error)"),
        (None, IN_DEVIATIONS),
    ],
)
def test_a_loss_is_known_by_what_it_computes_and_not_by_its_name(loss, expected):
    assert reading(ending(LAYERS.Dense(1), loss=loss)) == expected


NO_ACTIVATIONS = ("get", "serialize", "deserialize", "threshold")
ACTIVATIONS = [name for name, one in vars(keras.activations).items() if callable(one) and name not in NO_ACTIVATIONS]


@pytest.mark.filterwarnings("ignore:(?s).*softmax over axis -1:UserWarning")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_of_keras_activations_only_linear_lets_targets_be_standardised(name):
    loss = None if name == "glu" else "mse"  # it halves the outputs
    end = LAYERS.Dense(2 if name == "glu" else 1, name)
    assert (reading(ending(end, loss=loss)) == IN_DEVIATIONS) == (name == "linear")


def wide_and_deep(row):
    return LAYERS.Dense(1, use_bias=False)(row) + LAYERS.Dense(1)(LAYERS.Dense(4, "relu")(row))


class Line(keras.Model):
    def __init__(self):
        super().__init__()
        self.line = LAYERS.Dense(1)

    def call(self, row):
        return self.line(row)


def frozen_end(row):
    end = LAYERS.Dense(1, trainable=False)
    return end(LAYERS.Dense(3)(row))


IN_OWN_UNITS = "targets in their own units (its last layer is not known to be linear)"
ENDS = {
    "two parts that are added up": (wide_and_deep, IN_DEVIATIONS, IN_DEVIATIONS),
    "a change of an input": (lambda row: row[:, :1] + LAYERS.Dense(1)(row), IN_OWN_UNITS, IN_OWN_UNITS),
    "units of the user's": (lambda row: LAYERS.Rescaling(50.0, 300.0)(LAYERS.Dense(1)(row)), IN_OWN_UNITS, IN_OWN_UNITS),
    "a scale of the user's": (lambda row: LAYERS.Dense(1)(row) * 50, IN_OWN_UNITS, IN_DEVIATIONS),
    "no bias": (LAYERS.Dense(1, use_bias=False), IN_OWN_UNITS, IN_DEVIATIONS),
    "a dot product": (
        lambda row: LAYERS.Dot(1)([LAYERS.Dense(3)(row), LAYERS.Dense(3)(row)]), IN_OWN_UNITS, IN_DEVIATIONS
    ),
    "a dot product of vectors that have no scale": (
        lambda row: LAYERS.Dot(1)([LAYERS.Dense(3, "tanh")(row), LAYERS.Dense(3, "tanh")(row)]), IN_OWN_UNITS, IN_OWN_UNITS
    ),
    "a frozen end": (frozen_end, IN_OWN_UNITS, IN_OWN_UNITS),
    "a mean of places": (
        lambda row: LAYERS.GlobalAveragePooling1D()(LAYERS.Conv1D(1, 2)(row[..., None])), IN_DEVIATIONS, IN_DEVIATIONS
    ),
    "each moment": (lambda row: LAYERS.Flatten()(LAYERS.Dense(1)(row[:, None])), IN_DEVIATIONS, IN_DEVIATIONS),
    "a class of one's own": (lambda row: Line()(row), IN_DEVIATIONS, IN_DEVIATIONS),
    "half precision": (LAYERS.Dense(1, dtype="mixed_bfloat16"), IN_DEVIATIONS, IN_DEVIATIONS),
    "a regulariser": (
        LAYERS.Dense(1, kernel_regularizer="l2"),
        "targets in their own units (regularisers are added to the loss)",
        IN_DEVIATIONS,
    ),
    "a recurrent cell": (lambda row: LAYERS.LSTM(1)(row[..., None]), IN_OWN_UNITS, IN_OWN_UNITS),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_targets_are_standardised_where_the_best_network_stays_the_same(end):
    make, with_a_loss, without = ENDS[end]
    for loss, expected in (("mse", with_a_loss), (None, without)):
        row = keras.Input([6])
        model = keras.Model(row, make(row))
        if loss:
            model.compile(loss=loss)
        assert reading(model) == expected, loss


def test_losses_that_are_weighed_against_each_other_keep_their_units():
    row = keras.Input([6])
    model = keras.Model(row, [LAYERS.Dense(1)(row), LAYERS.Dense(1)(row)])
    model.compile(loss=["mse", "mae"])
    check_network(model, REGRESSION)  # Keras builds several losses when they are first computed
    assert reading(model) == "targets in their own units (losses of several kinds are added up)"
    model.compile(loss=["mae", "mae"], loss_weights=[1.0, 0.2])
    check_network(model, REGRESSION)
    assert reading(model) == IN_DEVIATIONS


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_a_loss_weighs_the_numbers_of_a_row_against_each_other_as_in_the_targets_units(loss):
    means, deviations = np.array([300.0, 1.0, 5.0]), np.array([20.0, 0.5, 0.0])  # the last number never changes
    rows = ExampleSpec(ROW, ArrayField("float64", (3,), tuple(means), tuple(deviations)), "regression")
    head = head_of(rows, model=ending(LAYERS.Dense(3), loss=loss))
    assert head.interpretation == IN_DEVIATIONS
    real, outputs = RNG.normal(means, deviations, (8, 3)), tf.constant(RNG.normal(size=(8, 3)), tf.float32)
    targets, half = head.targets(tf.constant(real)), outputs / 2
    errors = [np.abs(head.prediction_head.prediction(one).numpy() - real) for one in (outputs, half)]
    first, second = (float(head.loss(targets, one)) for one in (outputs, half))
    expected = [np.mean(one**2 if loss == "mse" else one) for one in errors]
    assert first / second == pytest.approx(expected[0] / expected[1], rel=1e-4)
    assert head.losses(targets, outputs).numpy() == pytest.approx([first] * 8)


IMAGES = ExampleSpec({"image": ArrayField("uint8", (32, 32, 3))}, REGRESSION.target, "regression")


@pytest.mark.parametrize("name", ["airbench", "tutorial_cnn"])
def test_the_packages_own_networks_are_trained_in_standard_deviations(name):
    network = NETWORKS[name]
    model = network.build(IMAGES, network.Settings(name=name, precision="float32"))
    assert head_of(IMAGES, model=model).interpretation == IN_DEVIATIONS


REAL = RNG.normal(size=[UPDATES, BATCH]).astype(np.float32)
COUNTS = RNG.poisson(3.0, [UPDATES, BATCH]).astype(np.float32)
NUMBERS = {"objective": "regression", "classes": (), "target": ArrayField("float32", (), (3.0,), (1.7,))}
LABELS = {"classes": ("no", "yes")}
FLOATS = {**NUMBERS, "target": ArrayField("float32", (), (0.4,), (0.5,))}
BINARY = RNG.integers(0, 2, [UPDATES, BATCH])
SATURATED = LAYERS.Dense(1, "sigmoid", kernel_initializer=keras.initializers.Constant(20.0))

LOGITS, FOCAL = keras.losses.BinaryCrossentropy(from_logits=True), keras.losses.BinaryFocalCrossentropy()
PROGRAMS = {
    "probability, whole labels": (LAYERS.Dense(1, "sigmoid"), "binary_crossentropy", LABELS, BINARY.astype(np.uint8)),
    "score, whole labels": (LAYERS.Dense(1), LOGITS, LABELS, BINARY.astype(np.uint8)),
    "focal loss": (LAYERS.Dense(1, "sigmoid"), FOCAL, LABELS, BINARY.astype(np.uint8)),
    "hinge": (LAYERS.Dense(1, "tanh"), "hinge", LABELS, BINARY.astype(np.uint8)),
    "squared error of labels": (LAYERS.Dense(1), "mse", LABELS, BINARY.astype(np.uint8)),
    "score of a sigmoid": (LAYERS.Dense(1, "sigmoid"), LOGITS, LABELS, BINARY.astype(np.uint8)),
    "a probability of 0 and 1": (SATURATED, "binary_crossentropy", LABELS, BINARY.astype(np.uint8)),
    "floats as a regression": (LAYERS.Dense(1, "sigmoid"), "binary_crossentropy", FLOATS, BINARY.astype(np.float32)),
    "counts": (LAYERS.Dense(1, "exponential"), "poisson", NUMBERS, COUNTS),
    "positive numbers": (LAYERS.Dense(1, "softplus"), "mse", NUMBERS, COUNTS),
    "relative error": (LAYERS.Dense(1), "mape", NUMBERS, COUNTS + 1),
    "logarithms": (LAYERS.Dense(1, "relu"), "msle", NUMBERS, COUNTS),
    "huber": (LAYERS.Dense(1), keras.losses.Huber(0.5), NUMBERS, REAL),
}


@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`:UserWarning")  # which one program asks for
@pytest.mark.parametrize(
    "program", mostly(PROGRAMS, "score, whole labels", "a probability of 0 and 1", "counts", "huber")
)
def test_the_updates_of_a_program_are_those_of_keras(program):
    end, loss, fields, targets = PROGRAMS[program]

    def build():
        return ending(end.from_config(end.get_config()), loss=loss)

    found = differences(build, ["row"], learned=(fields, targets), target=lambda one: one.astype(np.float32)[:, None])
    assert max(found) <= (1e-4 if end is SATURATED else 1e-5)  # whose weights are larger


SCORES = np.linspace(-3, 3, 8, dtype=np.float32)[:, None]
TRUE = np.array([0, 0, 1, 0, 0, 1, 1, 1])
SHARES = 1 / (1 + np.exp(-SCORES))
OF_TWO = [
    (LAYERS.Dense(1, "sigmoid"), "binary_crossentropy", SHARES, SHARES, "probability"),
    (LAYERS.Dense(1), LOGITS, SCORES, SHARES, "score"),
    (LAYERS.Dense(1), None, SCORES, SHARES, "score"),
    (LAYERS.Dense(1), "hinge", SCORES, SHARES, "score"),
    (LAYERS.Dense(1, "hard_sigmoid"), "binary_crossentropy", SHARES, SHARES, "probability"),
    (LAYERS.Dense(1), "mse", SHARES * 1.4 - 0.2, np.clip(SHARES * 1.4 - 0.2, 0, 1), "probability"),
]


@pytest.mark.parametrize(("end", "loss", "outputs", "shares", "said"), OF_TWO)
def test_two_classes_are_told_apart_by_one_number_at_a_probability_of_one_half(end, loss, outputs, shares, said):
    model = ending(end.from_config(end.get_config()), loss=loss)
    head, given = head_of(TWO, model=model), tf.constant(outputs, tf.float32)
    targets = head.targets(tf.constant(TRUE, tf.uint8))
    assert head.interpretation == f"predicted by one number: the {said} of the second class"
    assert head.metric(targets, given).numpy().tolist() == ((shares[:, 0] > 0.5) == TRUE).tolist()
    both = np.concatenate([1 - shares, shares], 1)
    of_two = head.prediction_head
    assert of_two.prediction(given).numpy() == pytest.approx(both, abs=1e-6)
    kept = head.kept(targets, given)
    assert kept["predicted"].numpy().tolist() == (shares[:, 0] > 0.5).astype(int).tolist()
    assert kept["of_target"].numpy() == pytest.approx(both[range(8), TRUE], abs=1e-6)
    again = of_two.metric(targets, of_two.outputs_of(of_two.prediction(given)))  # of a mean over views
    assert again.numpy().tolist() == head.metric(targets, given).numpy().tolist()
    assert head.metric(targets, tf.fill([8, 1], np.nan)).numpy().tolist() == [0.0] * 8


@pytest.mark.parametrize(("end", "loss"), [row[:2] for row in (*OF_TWO[:2], OF_TWO[-1])])
def test_a_saved_network_of_one_number_is_used_for_the_probabilities_of_both_classes(end, loss):
    model = ending(end.from_config(end.get_config()), loss=loss)
    head, rows = head_of(TWO, model=model), RNG.normal(size=[9, 6]).astype(np.float32)
    head.finished(model).save("best.keras")
    saved = load_unchanged(Path("best.keras"))
    assert saved(rows).numpy() == pytest.approx(model(rows).numpy(), abs=1e-6)
    expected = head.prediction_head.prediction(model(rows)).numpy()
    assert predicting(saved, TWO)(rows).numpy() == pytest.approx(expected, abs=1e-6)


def test_weights_of_classes_and_smoothed_labels_are_those_of_two_outputs():
    chosen = {"training.class_weights": {"yes": 3.0}, "training.label_smoothing": 0.2}
    training = build_config().with_values(chosen).training
    one = head_of(TWO, training, ending(LAYERS.Dense(1)))
    two = head_of(TWO, training)
    targets, labels = one.targets(tf.constant(TRUE)), two.targets(tf.constant(TRUE))
    assert one.weights(targets, None).numpy().tolist() == two.weights(labels, None).numpy().tolist()
    both = np.concatenate([np.zeros_like(SCORES), SCORES], 1)
    assert one.losses(targets, SCORES).numpy() == pytest.approx(two.losses(labels, both).numpy(), rel=1e-5)


def test_metrics_of_scores_are_those_of_probabilities_unless_somebody_has_said_that_they_take_scores():
    of_keras = keras.metrics
    metrics = [
        *(
            "accuracy",
            "binary_crossentropy",
            of_keras.AUC(name="auc"),
            of_keras.AUC(from_logits=True, name="auc_of_scores"),
        ),
        *(of_keras.BinaryAccuracy(name="half"), of_keras.BinaryAccuracy(threshold=0.0, name="at_0")),
        *(of_keras.Precision(name="precision"), of_keras.Recall(thresholds=0.0, name="recall_at_0")),
        of_keras.SensitivityAtSpecificity(0.5, name="sensitivity"),
    ]
    model = check_network(ending(LAYERS.Dense(1), loss=LOGITS, metrics=metrics), TWO)
    head, compiled = head_of(TWO, model=model), CompiledMetrics(model)
    given, targets = tf.constant(SCORES), head.targets(tf.constant(TRUE))
    compiled.update(targets, head.final(given), head.as_probabilities(given))
    found, expected = compiled.take_results(), {}
    for one in (of_keras.BinaryAccuracy(name="accuracy"), of_keras.BinaryCrossentropy(), *metrics[2:]):
        one.reset_state()
        takes_scores = one.name in ("auc_of_scores", "at_0", "recall_at_0")
        one.update_state(TRUE[:, None].astype(np.float32), SCORES if takes_scores else SHARES)
        expected[one.name] = pytest.approx(float(one.result()), rel=1e-5)
    assert len(expected) == 9 and expected == found


@pytest.mark.parametrize(
    ("end", "loss", "says"),
    [
        (LAYERS.Dense(2), None, True),
        (LAYERS.Dense(1), LOGITS, True),
        (LAYERS.Dense(1, "sigmoid"), "binary_crossentropy", False),
    ],
)
def test_the_summary_of_a_saved_network_says_that_it_returns_scores(end, loss, says):
    model = ending(end.from_config(end.get_config()), loss=loss)
    head_of(TWO, model=model).finished(model).save("best.keras")
    saved, lines = keras.saving.load_model("best.keras"), []
    saved.summary(print_fn=lines.append, line_length=200)
    assert ("ps_cluster_scores_not_probabilities" in "".join(lines)) == says
    if says and loss is None:
        assert head_of(TWO, model=saved).finished(saved) is saved, "it is said once"
