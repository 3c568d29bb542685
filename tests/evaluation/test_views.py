import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.evaluation.views import mean_over_views

IMAGES = np.random.default_rng(0).uniform(0, 255, [4, 32, 32, 3]).astype(np.float32)


def test_the_six_views_and_their_weights():
    """Against numpy: every view's own pixels as its scores."""
    found = np.asarray(
        mean_over_views(lambda inputs: tf.reshape(inputs["image"], [4, -1]), {"image": tf.constant(IMAGES)})
    )
    padded = np.pad(IMAGES, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    views = [(IMAGES, 1 / 4), (padded[:, :-2, :-2], 1 / 8), (padded[:, 2:, 2:], 1 / 8)]
    expected = sum(weight * (view + view[:, :, ::-1]) for view, weight in views)
    assert found == pytest.approx(expected.reshape(4, -1), rel=1e-5)


def test_an_image_that_looks_the_same_from_everywhere_keeps_its_scores():
    plain = tf.ones([2, 32, 32, 3]) * 100
    found = mean_over_views(lambda inputs: tf.reduce_mean(inputs["image"], [1, 2]), {"image": plain})
    assert np.asarray(found) == pytest.approx(np.full([2, 3], 100.0))
