"""The two metrics of a comparison: accuracy and error."""

import math

import pytest

from ps_cluster.errors import UserError
from ps_cluster.runs.result_rows import ScoreRow
from ps_cluster.tools.compare.metrics import ACCURACY, ERROR, METRICS, metric_of


def test_a_run_has_the_metric_that_its_scores_have():
    assert metric_of([ScoreRow(step=1, test_accuracy=0.0), ScoreRow(step=2)]) is ACCURACY
    assert metric_of([ScoreRow(step=1), ScoreRow(step=2, test_error=3.5)]) is ERROR
    assert metric_of([ScoreRow(step=1)]) is ERROR, "of a run that diverged an error is no number, an accuracy is one"


def test_a_higher_accuracy_and_a_lower_error_are_better():
    assert ACCURACY.reaches(0.6, 0.6) and ACCURACY.reaches(0.7, 0.6) and not ACCURACY.reaches(0.5, 0.6)
    assert ERROR.reaches(0.6, 0.6) and ERROR.reaches(0.5, 0.6) and not ERROR.reaches(0.7, 0.6)
    assert (ACCURACY.best([0.1, 0.3]), ERROR.best([0.1, 0.3]), ERROR.best([])) == (0.3, 0.1, None)


@pytest.mark.parametrize(
    ("best", "target"),
    [([0.0734, 0.05], 0.074), ([12.3], 13.0), ([1234.0, 7.0], 1300.0), ([0.25], 0.25), ([3e-7], 3e-7), ([0.0], None)],
)
def test_the_default_target_of_errors_is_a_number_of_two_digits_that_all_fell_to(best, target):
    found = ERROR.default_target(best)
    assert found == target
    assert found is None or all(ERROR.reaches(value, found) for value in best)


def test_learning_is_judged_by_what_a_guess_gives():
    assert ACCURACY.bar(1 / 10) == 0.15 and ACCURACY.bar(1 / 100) == 0.015
    assert ERROR.bar(3.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("metric", "bad"), [("accuracy", 60.0), ("accuracy", 0.0), ("error", 0.0), ("error", math.inf)]
)
def test_a_target_that_no_run_can_have_is_refused_with_its_value(metric, bad):
    with pytest.raises(UserError, match=f"target_score: got {bad:g}: write an {metric}"):
        METRICS[metric].check_target(bad)


def test_an_error_may_be_larger_than_1_and_intervals_end_where_the_metric_does():
    ERROR.check_target(60.0)
    assert ERROR.limited(-1.0, 5.0) == (0.0, 5.0) and ACCURACY.limited(-1.0, 5.0) == (0.0, 1.0)
    assert ACCURACY.signed(250.0) == "+100.00" and ERROR.signed(-250.4) == "-250"


def test_errors_that_fall_by_factors_have_a_logarithmic_axis():
    assert ERROR.is_log([50.0, 2.0]) and not ERROR.is_log([3.0, 2.0]) and not ERROR.is_log([3.0, 0.0])
    assert not ERROR.is_log([]) and not ACCURACY.is_log([90.0, 1.0])
