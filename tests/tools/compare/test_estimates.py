"""The two metrics of a comparison, and means, intervals and differences against numbers worked out by hand."""

import math

import pytest

from ps_cluster.errors import UserError
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.result_rows import ScoreRow
from ps_cluster.tools.compare.estimates import SeededValues, difference, estimate, ratio, t_quantile
from ps_cluster.tools.compare.metric import ACCURACY, ERROR, metric_named, metric_of


def test_a_run_has_the_metric_that_its_scores_have():
    assert metric_of([ScoreRow(step=1, test_accuracy=0.0), ScoreRow(step=2)]) == ACCURACY
    assert metric_of([ScoreRow(step=1), ScoreRow(step=2, test_error=3.5)]) == ERROR
    assert metric_of([ScoreRow(step=1)]) == ERROR, "of a run that diverged an error is no number, an accuracy is one"


def test_a_run_is_compared_by_its_monitor_on_held_out_examples_if_there_are_any():
    held_out = {"validation_accuracy": 0.5, "validation_metrics": {"r2": -0.25, "rmse": 2.0}}
    scores = [ScoreRow(step=1, test_accuracy=0.6, metrics={"r2": 0.25, "rmse": 1.0}, **held_out)]
    by_accuracy, by_r2, by_rmse = (
        metric_of(scores, monitor) for monitor in (Monitor(), Monitor("r2", "max"), Monitor("rmse", "min"))
    )
    assert [metric.name for metric in (by_accuracy, by_r2, by_rmse)] == [
        "validation accuracy", "validation r2", "validation rmse",
    ]  # fmt: skip
    assert [metric.of(scores[0]) for metric in (by_accuracy, by_r2, by_rmse)] == [0.5, -0.25, 2.0]
    assert by_r2.reaches(0.5, 0.4) and by_rmse.reaches(1.0, 2.0) and not by_rmse.reaches(3.0, 2.0)
    assert by_r2.limited(-3.0, 2.0) == (-3.0, 1.0) and by_rmse.limited(-1.0, 5.0) == (0.0, 5.0)
    by_r2.check_target(-0.5)
    with pytest.raises(UserError, match="target_score: got 2: write a value of r2"):
        by_r2.check_target(2.0)


def test_a_higher_accuracy_and_a_lower_error_are_better():
    assert ACCURACY.reaches(0.6, 0.6) and ACCURACY.reaches(0.7, 0.6) and not ACCURACY.reaches(0.5, 0.6)
    assert ERROR.reaches(0.6, 0.6) and ERROR.reaches(0.5, 0.6) and not ERROR.reaches(0.7, 0.6)
    assert (ACCURACY.best([0.1, 0.3]), ERROR.best([0.1, 0.3]), ERROR.best([])) == (0.3, 0.1, None)


@pytest.mark.parametrize(
    ("best", "target"),
    [([0.0734, 0.05], 0.074), ([12.3], 13.0), ([1234.0, 7.0], 1300.0), ([0.25], 0.25), ([3e-7], 3e-7), ([0.0], None)],
)
def test_the_default_target_of_errors_is_a_number_of_two_digits_that_all_fell_to(best, target):
    found = ERROR.default_target(best, [1e9] * len(best))
    assert found == target
    assert found is None or all(ERROR.reaches(value, found) for value in best)


@pytest.mark.parametrize(
    ("metric", "bad"), [("accuracy", 60.0), ("accuracy", 0.0), ("error", 0.0), ("error", math.inf)]
)
def test_a_target_that_no_run_can_have_is_refused_with_its_value(metric, bad):
    with pytest.raises(UserError, match=f"target_score: got {bad:g}: write an {metric}"):
        metric_named(metric, "max", "test").check_target(bad)


def test_an_error_may_be_larger_than_1_and_intervals_end_where_the_metric_does():
    ERROR.check_target(60.0)
    assert ERROR.limited(-1.0, 5.0) == (0.0, 5.0) and ACCURACY.limited(-1.0, 5.0) == (0.0, 1.0)
    assert ACCURACY.signed(2.5) == "+100.00" and ERROR.signed(-250.4) == "-250"


def test_errors_that_fall_by_factors_have_a_logarithmic_axis():
    assert ERROR.is_log([50.0, 2.0]) and not ERROR.is_log([3.0, 2.0]) and not ERROR.is_log([3.0, 0.0])
    assert not ERROR.is_log([]) and not ACCURACY.is_log([90.0, 1.0])


SEEDS = (0, 1, 2)


def test_mean_spread_and_interval_of_three_values():
    found = estimate([1.0, 2.0, 6.0])  # deviations -2, -1, 3: variance 14 / 2
    assert (found.n, found.mean) == (3, 3.0)
    assert found.sd == pytest.approx(math.sqrt(7))
    half = 4.303 * math.sqrt(7 / 3)
    assert (found.low, found.high) == (pytest.approx(3 - half), pytest.approx(3 + half))


def test_one_value_has_no_spread_and_none_has_no_mean():
    found = estimate([5.0])
    assert (found.n, found.mean, found.sd, found.low, found.high) == (1, 5.0, None, None, None)
    assert estimate([]) is None


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706), (2.9, 4.303), (30, 2.042), (39, 2.042), (40, 2.021), (1e6, 1.980)]
)
def test_quantiles_are_those_of_the_table_and_degrees_of_freedom_are_rounded_down(degrees, expected):
    assert t_quantile(degrees) == expected


def test_same_seeds_are_compared_seed_by_seed_in_whatever_order():
    first, second = SeededValues((2, 0, 1), (7.0, 2.0, 4.0)), SeededValues(SEEDS, (1.0, 2.0, 6.0))
    found = difference(first, second)  # seed by seed 1, 2, 1: mean 4/3, variance 1/3
    half = 4.303 * math.sqrt(1 / 3 / 3)
    assert found.paired and found.n == 3
    assert (found.mean, found.low, found.high) == tuple(map(pytest.approx, (4 / 3, 4 / 3 - half, 4 / 3 + half)))
    assert found.low < 0 < found.high


def test_pairs_show_a_difference_that_the_spread_over_seeds_would_hide():
    first, second = (10.0, 20.0, 30.0), (9.0, 18.9, 29.1)
    assert difference(SeededValues(SEEDS, first), SeededValues(SEEDS, second)).low > 0
    assert difference(SeededValues(SEEDS, first), SeededValues((3, 4, 5), second)).low < 0


def test_other_seeds_are_compared_by_welch():
    found = difference(SeededValues((0, 1), (4.0, 6.0)), SeededValues((5, 6, 7), (1.0, 2.0, 3.0)))
    # Variances 2 and 1: squared errors 1 and 1/3; degrees (4/3)^2 / (1/1 + (1/9)/2) = 1.68, rounded down to 1.
    half = 12.706 * math.sqrt(4 / 3)
    assert not found.paired and found.n == 2
    assert (found.mean, found.low, found.high) == tuple(map(pytest.approx, (3.0, 3 - half, 3 + half)))


def test_a_seed_that_comes_twice_is_not_paired():
    assert not difference(SeededValues((0, 0), (1.0, 2.0)), SeededValues((0, 0), (3.0, 4.0))).paired


def test_a_ratio_is_one_of_geometric_means():
    found = ratio(SeededValues(SEEDS, (2.0, 8.0, 4.0)), SeededValues(SEEDS, (1.0, 4.0, 2.0)))
    assert (found.mean, found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0))
