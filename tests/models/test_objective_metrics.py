"""The further metrics of the objectives, against formulas in numpy and against Keras's own classes on the same numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.objectives import OBJECTIVES, ArrayField, ExampleSpec
from ps_cluster.models.compiled import CompiledMetrics
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.objective_metrics import ObjectiveMetrics, metric_directions

RNG = np.random.default_rng(7)
N = 700  # more than one batch, and no multiple of it
BATCH = 50


def spec_of(objective, classes=0, shape=(), **field):
    dtype = "int64" if objective == "classification" else "float32"
    names = tuple(f"c{index}" for index in range(classes))
    return ExampleSpec({"x": ArrayField("float32", (4,))}, ArrayField(dtype, shape, **field), objective, names)


TWO, FIVE = spec_of("classification", 2), spec_of("classification", 5)
LABELS = spec_of("multi-label", 3, (3,))
FAR = spec_of("regression", mean=(2000.0,), std=(10.0,))
PAIR = spec_of("regression", shape=(2,), mean=(1.0, -50.0), std=(0.5, 20.0))


def network(ends_in, *, metrics=(), activation=None, loss=None):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(ends_in, activation=activation)])
    if loss or metrics:
        model.compile(loss=loss, metrics=list(metrics))
    return model


def found(spec, rows, outputs, model=None):
    """The metrics of packed targets and of a network's outputs, which come in batches."""
    head = head_of(spec, model=model)
    compiled = CompiledMetrics(model or keras.Sequential())
    metrics = ObjectiveMetrics(head, compiled)
    for start in range(0, len(rows), BATCH):
        batch = slice(start, start + BATCH)
        targets, of_batch = head.targets(tf.constant(rows[batch])), tf.constant(outputs[batch], tf.float32)
        compiled.update(targets, of_batch, of_batch)
        metrics.add(*head.compared(targets, of_batch))
    return metrics.take_results()


def softmax(scores):
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def area(truth, scores):
    """The share of pairs of a positive and a negative that are in order; half for equal scores (Mann and Whitney 1947)."""
    positive, negative = scores[truth == 1], scores[truth == 0]
    above = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
    return float(above)


def f1(truth, predicted):
    hits = np.sum(truth * predicted)
    return 2 * hits / max(1, truth.sum() + predicted.sum())


def test_two_classes_are_told_apart_by_area_log_loss_and_f1_of_the_second():
    scores = RNG.normal(size=(N, 2))
    labels = (RNG.random(N) < softmax(scores)[:, 1]).astype(np.int64)
    second = softmax(scores)[:, 1]
    expected = {
        "auc": pytest.approx(area(labels, second), abs=2e-4),
        "log_loss": pytest.approx(-np.log(np.where(labels == 1, second, 1 - second)).mean(), rel=1e-5),
        "f1": pytest.approx(f1(labels, second > 0.5), rel=1e-5),
    }
    assert found(TWO, labels, scores) == expected
    one_score = network(1)
    assert found(TWO, labels, scores[:, 1:] - scores[:, :1], one_score) == expected
    assert found(TWO, labels, second[:, None], network(1, activation="sigmoid", loss="binary_crossentropy")) == expected


def test_the_area_is_right_where_the_second_class_is_rare():
    odds = RNG.normal(-7, 1, N * 20)  # a click in a thousand: Keras's 200 thresholds see hardly one of these
    shares = 1 / (1 + np.exp(-odds))
    labels = (RNG.random(len(odds)) < 4 * shares).astype(np.int64)
    scores = np.stack([np.zeros_like(odds), odds], axis=1)
    ours, exact = found(TWO, labels, scores)["auc"], area(labels, shares)
    of_keras = keras.metrics.AUC()
    of_keras.update_state(labels, shares)
    assert abs(ours - exact) < 0.02 < abs(float(of_keras.result()) - exact)


def test_several_classes_have_log_loss_and_macro_f1():
    scores, labels = RNG.normal(size=(N, 5)), RNG.integers(0, 5, N)
    shares, truth = softmax(scores), np.eye(5)[labels]
    of_classes = [f1(truth[:, index], shares.argmax(1) == index) for index in range(5)]
    assert found(FIVE, labels, scores) == {
        "log_loss": pytest.approx(-np.log(shares[np.arange(N), labels]).mean(), rel=1e-5),
        "f1": pytest.approx(np.mean(of_classes), rel=1e-5),
    }


def test_several_labels_have_the_mean_area_and_the_mean_f1():
    scores, rows = RNG.normal(size=(N, 3)), RNG.integers(0, 2, (N, 3)).astype(np.float32)
    shares = 1 / (1 + np.exp(-scores))
    assert found(LABELS, rows, scores) == {
        "auc": pytest.approx(np.mean([area(rows[:, i], shares[:, i]) for i in range(3)]), abs=2e-3),
        "f1": pytest.approx(np.mean([f1(rows[:, i], shares[:, i] > 0.5) for i in range(3)]), rel=1e-5),
    }


def test_labels_that_no_example_has_or_all_have_do_not_change_the_means_over_the_others():
    scores, rows = RNG.normal(size=(N, 3)), RNG.integers(0, 2, (N, 3)).astype(np.float32)
    rows[:, 1], rows[:, 2] = 0, 1
    shares = 1 / (1 + np.exp(-scores))
    assert found(LABELS, rows, scores) == {
        "auc": pytest.approx(area(rows[:, 0], shares[:, 0]), abs=2e-3),
        "f1": pytest.approx(np.mean([f1(rows[:, i], shares[:, i] > 0.5) for i in (0, 2)]), rel=1e-5),
    }
    assert found(LABELS, np.zeros_like(rows), scores) == {}


def test_classes_without_an_example_do_not_change_the_mean_over_the_others():
    scores, labels = RNG.normal(size=(N, 5)), RNG.integers(0, 4, N)
    predicted, truth = scores.argmax(1), np.eye(5)[labels]
    of_classes = [f1(truth[:, index], predicted == index) for index in range(4)]
    assert found(FIVE, labels, scores)["f1"] == pytest.approx(np.mean(of_classes), rel=1e-5)
    assert set(found(TWO, np.zeros(N, np.int64), scores[:, :2])) == {"log_loss"}


@pytest.mark.parametrize(("spec", "places"), [(FAR, 1), (PAIR, 2)], ids=["far from 0", "two numbers"])
def test_a_regression_has_rmse_and_r2_in_the_targets_own_units(spec, places):
    mean, std = np.array(spec.target.mean), np.array(spec.target.std)
    outputs = RNG.normal(size=(N, places)).astype(np.float32)
    rows = (mean + std * (outputs + RNG.normal(size=(N, places)))).astype(np.float32)
    predicted = mean + std * outputs
    errors, spread = np.square(rows - predicted), np.square(rows - rows.mean(0, dtype=np.float64))
    expected = {
        "rmse": pytest.approx(np.sqrt(errors.mean()), rel=1e-5),
        "r2": pytest.approx(np.mean(1 - errors.sum(0) / spread.sum(0)), abs=1e-5),
    }
    assert found(spec, rows if places > 1 else rows[:, 0], outputs) == expected


def test_the_metrics_have_the_names_of_the_objective():
    for spec in (TWO, FIVE, LABELS, FAR, PAIR):
        assert tuple(head_of(spec).further_metrics()) == OBJECTIVES[spec.objective].further_metrics(spec)


def test_a_metric_that_compile_has_too_is_left_to_it():
    metrics = [keras.metrics.AUC(curve="PR", name="prc"), "accuracy", keras.metrics.MeanMetricWrapper(_own, name="f1")]
    spec = spec_of("multi-label", 2, (2,))
    rows = RNG.integers(0, 2, (N, 2)).astype(np.float32)
    outputs = RNG.normal(size=(N, 2)).astype(np.float32)
    model = network(2, loss=keras.losses.BinaryCrossentropy(from_logits=True), metrics=metrics)
    assert found(spec, rows, outputs, model) == {}
    modes = metric_directions(head_of(spec, model=model), CompiledMetrics(model))
    assert modes == {"prc": "max", "accuracy": "max", "f1": None}


def _own(targets, outputs):
    return tf.reduce_mean(outputs, axis=-1)


def test_outputs_that_are_not_finite_do_not_end_the_scoring():
    outputs = np.full((N, 2), np.nan, np.float32)
    assert set(found(TWO, RNG.integers(0, 2, N), outputs)) <= {"auc", "log_loss", "f1"}
