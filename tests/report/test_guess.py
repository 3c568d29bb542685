"""The guess: the metric of an answer that does not look at the inputs."""

import numpy as np
import pytest

from ps_cluster.config.datasets import Contents
from ps_cluster.data.packing import write_packed
from ps_cluster.report.guess import Guess, guess_for
from ps_cluster.runs.result_rows import EvaluationSummary, ScoreRow
from tests.helpers.data import only_named


@pytest.fixture
def guess(tmp_path):
    """guess(training targets, test targets, …) → the guess for a run on such a data set."""

    def of(train, test, **more):
        splits = [{"x": np.zeros((len(target), 1), np.float32), "target": target} for target in (train, test)]
        dataset = write_packed(tmp_path / "packed", "mine", "real", Contents.of(*splits, **more))
        found = guess_for(dataset)
        return found and found.value

    return of


def test_a_guess_of_a_class_is_right_as_often_as_the_most_frequent_one_comes_in_the_test_labels(guess):
    train, test = np.array([0, 1, 2, 3, 4, 4], np.int64), np.array([1, 1, 2, 3, 1], np.int64)
    assert guess(train, test) == pytest.approx(3 / 5)


def test_of_a_regression_a_guess_is_the_mean_of_the_training_targets(guess):
    draw = np.random.default_rng(0)
    train, test = (draw.normal(shift, 7, (count, 2)).astype(np.float32) for shift, count in ((3, 50), (5, 20)))
    expected = np.abs(test - train.mean(axis=0)).mean()
    assert guess(train, test, objective="regression") == pytest.approx(expected, rel=1e-4)


def test_of_several_labels_a_guess_gives_each_to_all_or_to_none(guess):
    labels = np.array([[0, 1, 0], [1, 1, 0], [1, 1, 0], [1, 0, 0]], np.uint8)
    assert guess(labels, labels, objective="multi-label") == pytest.approx((3 / 4 + 3 / 4 + 1) / 3)


@pytest.mark.parametrize(
    ("scores", "beaten"),
    [
        ([{"test_accuracy": 0.10, "test_loss": 2.3}], False),
        ([{"test_accuracy": 0.118, "test_loss": 2.3}], False),  # two standard errors
        ([{"test_accuracy": 0.129, "test_loss": 2.2}, {"test_accuracy": 0.0}], True),
        ([{"test_error": 0.1, "test_loss": 2.3}], False),
        ([{"test_error": 0.0989, "test_loss": 2.3}], True),
        # 2.6 standard errors: (1001 / (12 x 90,000))**0.5 is 0.030
        ([{"test_accuracy": 0.10, "metrics": {"auc": 0.58}}], False),
        ([{"test_accuracy": 0.10, "metrics": {"auc": 0.60}}], True),
        ([{}], False),  # a metric that is not finite
        ([], None),
    ],
)
def test_a_guess_is_beaten_by_more_than_chance(scores, beaten):
    history = [ScoreRow(step=step, **score) for step, score in enumerate(scores)]
    assert Guess(0.1, examples=1000).is_beaten_by(EvaluationSummary(history=history)) is beaten


@pytest.mark.parametrize(
    ("examples", "score", "beaten", "too_few"),
    [
        (6, {"test_accuracy": 1.0}, None, True),
        (20, {"test_accuracy": 0.8}, None, True),
        (20, {"test_accuracy": 0.9}, True, False),
        (100, {"test_accuracy": 0.6}, False, False),
        (9, {"test_error": 0.1}, None, True),
        (10, {"test_error": 0.1}, True, False),
    ],
)
def test_of_few_examples_it_is_said_that_they_are_too_few_to_tell(examples, score, beaten, too_few):
    guess, scores = Guess(0.5, examples), EvaluationSummary(history=[ScoreRow(step=1, **score)])
    assert (guess.is_beaten_by(scores), guess.is_too_uncertain_for(scores)) == (beaten, too_few)


def test_without_the_data_no_guess_is_known(tmp_path):
    assert guess_for(only_named(directory=tmp_path)) is None
