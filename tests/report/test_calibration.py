"""Calibration by numbers that were computed by hand."""

import numpy as np
import pytest

from ps_cluster.report.calibration import BINS, Calibration, reliability


def test_the_error_is_the_mean_gap_of_the_bins_weighted_by_their_predictions():
    # Two bins: (0, 0.5] has 0.3 (wrong) and 0.5 (right): right 0.5, sure 0.4, gap 0.1, of 2 predictions.
    # (0.5, 1] has 0.9, 0.9, 0.6 (right, wrong, right): right 2/3, sure 0.8, gap 2/15, of 3 predictions.
    confidence, right = np.array([0.3, 0.5, 0.9, 0.9, 0.6]), np.array([False, True, True, False, True])
    found = Calibration.of(confidence, right, bins=2)
    assert found.counts.tolist() == [2, 3]
    assert found.bin_means(found.rights) == pytest.approx([0.5, 2 / 3])
    assert found.bin_means(found.sums) == pytest.approx([0.4, 0.8])
    assert found.expected_error == pytest.approx((2 * 0.1 + 3 * 2 / 15) / 5)
    assert found.overconfidence == pytest.approx((0.3 + 0.5 + 0.9 + 0.9 + 0.6 - 3) / 5)


def test_gaps_of_opposite_sign_do_not_cancel():
    confidence, right = np.array([0.25, 0.25, 0.75, 0.75]), np.array([True, True, False, False])
    assert Calibration.of(confidence, right, bins=2).expected_error == pytest.approx(0.75)
    assert Calibration.of(confidence, right, bins=2).overconfidence == 0


def test_the_ends_of_the_range_are_in_the_first_and_the_last_bin():
    found = Calibration.of(np.array([0.0, 1.0]), np.array([False, True]))
    assert (found.counts[0], found.counts[-1], found.total) == (1, 1, 2)
    assert found.bin_means(found.rights)[1] is None and found.bin_means(found.sums)[1] is None


def test_without_predictions_there_is_no_error():
    nothing = Calibration.of(np.empty(0), np.empty(0, bool))
    assert nothing.expected_error is None and nothing.overconfidence is None


def test_the_plot_marks_a_bin_in_which_all_is_wrong_and_none_without_predictions():
    confidence, right = np.array([0.35, 0.35, 0.95, 0.95]), np.array([False, False, True, False])
    plot, _ = reliability(Calibration.of(confidence, right), "images")
    (axes,) = plot.figure.axes
    dots, _ = axes.lines
    wrong, half = 100 * 5.5 / BINS, 100 * 14.5 / BINS  # the middles of two bins
    assert dots.get_xydata() == pytest.approx(np.array([[wrong, 0], [half, 50]]))
    assert [bar.get_height() for bar in axes.patches] == [0, 50]
    assert plot.caption.endswith("A bin without a dot has no predictions.")
