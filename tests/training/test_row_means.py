"""The means of a progress row are those of the updates since the row before."""

import numpy as np

from ps_cluster.training.row_means import Means, RowMeans
from tests.helpers.ledgers import rows_of

NO_MEANS = Means(loss=None, metric=None, learning_rate=None, staleness=None, diverged=False)


def test_means_are_those_of_the_updates_that_no_row_has_reported():
    means = RowMeans()
    assert means.take() == NO_MEANS
    means.add(rows_of([0, 1], loss=[1.0, 2.0], staleness=[0, 3], examples=[10, 30], metric=[5, 25]))
    means.add(rows_of([2], loss=6.0, staleness=0, examples=10, metric=0))
    assert means.take() == Means(loss=3, metric=30 / 50, learning_rate=0, staleness=1, diverged=False)
    assert means.take() == NO_MEANS


def test_the_learning_rate_is_the_one_that_was_applied():
    means = RowMeans()
    means.add(rows_of([0, 1], learning_rate=0.5, rate_factor=[1.0, 0.5]))
    assert means.take().learning_rate == 0.375


def test_a_mean_that_is_no_number_is_unknown_and_the_next_one_is_known_again():
    means = RowMeans()
    means.add(rows_of([0, 1], loss=[np.nan, 1.0], examples=10, metric=5))
    found = means.take()
    assert (found.loss, found.diverged, found.metric) == (None, True, 0.5)
    means.add(rows_of([2], loss=1.0))
    found = means.take()
    assert (found.loss, found.diverged) == (1, False)
