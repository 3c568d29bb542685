"""Means, intervals and differences against numbers worked out by hand."""

import math

import pytest

from ps_cluster.tools.compare.metrics import Sample, difference, estimate, log_ratio, t_quantile

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
    first, second = Sample((2, 0, 1), (7.0, 2.0, 4.0)), Sample(SEEDS, (1.0, 2.0, 6.0))
    found = difference(first, second)  # seed by seed 1, 2, 1: mean 4/3, variance 1/3
    half = 4.303 * math.sqrt(1 / 3 / 3)
    assert found.paired and found.n == 3
    assert (found.mean, found.low, found.high) == tuple(map(pytest.approx, (4 / 3, 4 / 3 - half, 4 / 3 + half)))
    assert not found.shown


def test_pairs_show_a_difference_that_the_spread_over_seeds_would_hide():
    first, second = (10.0, 20.0, 30.0), (9.0, 18.9, 29.1)
    assert difference(Sample(SEEDS, first), Sample(SEEDS, second)).shown
    assert not difference(Sample(SEEDS, first), Sample((3, 4, 5), second)).shown


def test_other_seeds_are_compared_by_welch():
    found = difference(Sample((0, 1), (4.0, 6.0)), Sample((5, 6, 7), (1.0, 2.0, 3.0)))
    # Variances 2 and 1: squared errors 1 and 1/3; degrees (4/3)^2 / (1/1 + (1/9)/2) = 1.68, rounded down to 1.
    half = 12.706 * math.sqrt(4 / 3)
    assert not found.paired and found.n == 2
    assert (found.mean, found.low, found.high) == tuple(map(pytest.approx, (3.0, 3 - half, 3 + half)))


def test_a_seed_that_comes_twice_is_not_paired():
    assert not difference(Sample((0, 0), (1.0, 2.0)), Sample((0, 0), (3.0, 4.0))).paired


def test_one_run_each_shows_nothing():
    found = difference(Sample((0,), (9.0,)), Sample((0,), (1.0,)))
    assert (found.mean, found.low, found.has_interval, found.shown) == (8.0, None, False, False)


def test_a_ratio_is_one_of_geometric_means():
    found = log_ratio(Sample(SEEDS, (2.0, 8.0, 4.0)), Sample(SEEDS, (1.0, 4.0, 2.0)))
    assert math.exp(found.mean) == pytest.approx(2.0)
    assert (math.exp(found.low), math.exp(found.high)) == (pytest.approx(2.0), pytest.approx(2.0))
    assert found.shown
