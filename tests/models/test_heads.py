import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.compiled_heads import head_of

RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(0, 2, (6, 3)).astype(np.float32)


def head(objective, target, classes=(), smoothing=0.0):
    training = build_config().training.model_copy(update={"label_smoothing": smoothing})
    return head_of(ExampleSpec({}, target, objective, classes), training)


def of(part, targets, outputs=OUTPUTS):
    return np.asarray(part(targets, tf.constant(outputs)))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_classification_is_the_cross_entropy_of_smoothed_labels(smoothing):
    one = head("classification", ArrayField("uint8", ()), ("a", "b", "c"), smoothing)
    labels = np.array([0, 1, 2, 0, 1, 2], np.uint8)
    wanted = (1 - smoothing) * np.eye(3)[labels] + smoothing / 3
    logs = OUTPUTS - np.log(np.exp(OUTPUTS).sum(1, keepdims=True))
    targets = one.targets(tf.constant(labels))
    assert of(one.losses, targets) == pytest.approx(-(wanted * logs).sum(1), rel=1e-5)
    assert of(one.loss, targets) == pytest.approx(-(wanted * logs).sum(1).mean(), rel=1e-5)
    assert of(one.metric, targets).tolist() == (OUTPUTS.argmax(1) == labels).tolist()
    assert np.asarray(one.prediction(OUTPUTS)) == pytest.approx(np.exp(logs), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_multi_label_is_the_binary_cross_entropy_of_each_label(smoothing):
    one = head("multi-label", ArrayField("bool", (3,)), ("a", "b", "c"), smoothing)
    rows = RNG.integers(0, 2, (6, 3)).astype(bool)
    share = 1 / (1 + np.exp(-OUTPUTS))
    wanted = rows * (1 - smoothing) + smoothing / 2
    losses = -(wanted * np.log(share) + (1 - wanted) * np.log(1 - share)).mean(1)
    targets = one.targets(tf.constant(rows))
    assert of(one.losses, targets) == pytest.approx(losses, rel=1e-4)
    assert of(one.metric, targets) == pytest.approx(((share > 0.5) == rows).mean(1))
    assert np.asarray(one.prediction(OUTPUTS)) == pytest.approx(share, rel=1e-5)


def test_regression_is_trained_in_standard_deviations_and_told_in_the_targets_units():
    mean, std = np.array([10.0, -5.0, 0.0]), np.array([2.0, 4.0, 0.5])
    one = head("regression", ArrayField("float64", (3,), tuple(mean), tuple(std)))
    rows = RNG.normal(mean, std, (6, 3))
    targets = one.targets(tf.constant(rows))
    assert of(one.losses, targets) == pytest.approx(((OUTPUTS - (rows - mean) / std) ** 2).mean(1), rel=1e-4)
    assert np.asarray(one.prediction(OUTPUTS)) == pytest.approx(OUTPUTS * std + mean, rel=1e-5)
    assert of(one.metric, targets) == pytest.approx(np.abs(OUTPUTS * std + mean - rows).mean(1), rel=1e-4)


def test_a_regression_of_one_number_that_never_changes_divides_by_nothing():
    one = head("regression", ArrayField("float32", (), (3.0,), (0.0,)))
    targets = one.targets(tf.fill([6], 3.0))
    assert of(one.losses, targets, np.zeros((6, 1), np.float32)).tolist() == [0.0] * 6


@pytest.mark.parametrize(
    ("objective", "target"), [("classification", ArrayField("uint8", ())), ("multi-label", ArrayField("uint8", (3,)))]
)
def test_outputs_that_are_not_numbers_are_right_about_nothing(objective, target):
    one = head(objective, target, ("a", "b", "c"))
    targets = one.targets(tf.zeros([6, *target.shape], tf.uint8))
    assert of(one.metric, targets, np.full((6, 3), np.nan, np.float32)).tolist() == [0.0] * 6


def test_a_sequential_network_that_is_finished_returns_the_targets_units():
    one = head("regression", ArrayField("float32", (), (10.0,), (2.0,)))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    x = np.ones((2, 3), np.float32)
    finished = one.finished(model).predict(x, verbose=0)
    assert finished == pytest.approx(10 + 2 * model.predict(x, verbose=0), rel=1e-5)


def test_errors_far_from_0_are_those_of_the_data_and_not_of_float32():
    """Unix seconds: in float32 neighbours are 128 apart, so rounded targets would fall on the predictions."""
    real = 1.7e9 + np.linspace(-40, 40, 9)[:, None]
    one = head("regression", ArrayField("float64", (), (1.7e9,), (40.0,)))
    targets = one.targets(tf.constant(real[:, 0]))
    outputs = tf.constant((real - 1.7e9) / 40, tf.float32)
    assert one.scaled(targets).numpy() == pytest.approx(outputs.numpy(), abs=1e-6)
    told = one.metric(targets, outputs).numpy()
    assert told == pytest.approx(np.abs(one.prediction(outputs).numpy().astype(np.float64) - real)[:, 0])
    assert told.max() > 20
