import numpy as np
import pytest

from ps_cluster.data.sets import synthetic
from tests.helpers.data import arrays_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def generated():
    return arrays_of(synthetic.generate(12_000, 2_000, seed=3))


def test_same_seed_gives_the_same_set_and_another_seed_another():
    first, again, other = (arrays_of(synthetic.generate(700, 300, seed)) for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        assert (a == b).all()
        assert (a != c).any()


def test_size_of_the_training_set_does_not_change_the_test_set():
    *_, test_images, test_labels = arrays_of(synthetic.generate(10, 50))
    *_, more_images, more_labels = arrays_of(synthetic.generate(700, 50))
    assert (test_images == more_images).all() and (test_labels == more_labels).all()


def test_shapes_types_and_balance(generated):
    train_images, train_labels, test_images, test_labels = generated
    assert train_images.shape == (12_000, 32, 32, 3) and test_images.shape == (2_000, 32, 32, 3)
    assert {array.dtype for array in generated} == {np.dtype(np.uint8)}
    assert np.bincount(train_labels).tolist() == [1_200] * 10
    assert np.bincount(test_labels).tolist() == [200] * 10
    assert len(synthetic.SYNTHETIC_CLASSES) == len(set(synthetic.SYNTHETIC_CLASSES)) == 10


def test_labels_are_shuffled(generated):
    labels = generated[1]
    for part in np.array_split(labels, 20):
        assert np.bincount(part, minlength=10).min() > 30


def test_no_image_comes_twice(generated):
    images = np.concatenate([generated[0], generated[2]]).reshape(14_000, -1)
    assert len({row.tobytes() for row in images}) == 14_000


def test_mean_colours_say_nothing_about_the_class(generated):
    train_images, train_labels, *_ = generated
    means = train_images.mean((1, 2))
    by_class = np.array([means[train_labels == label].mean(0) for label in range(10)])
    assert np.abs(by_class - means.mean(0)).max() < 5 * means.std() / np.sqrt(1_200)


def test_classes_meet_without_a_gap_and_the_larger_weight_is_the_label():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 10)
    others = np.tile(np.arange(10), 10)
    u, v = rng.uniform(-1.5, 1.5, (2, 100, 8, 8)).astype(np.float32)

    def blend(first, second, weight):
        return synthetic.blended_distance(first, second, np.full((100, 1, 1), weight, np.float32), u, v)

    half = np.float32(0.5)
    assert np.allclose(blend(labels, others, half), blend(others, labels, half), atol=1e-6)
    apart = np.abs(
        blend(labels, others, synthetic.MIN_OTHER_WEIGHT) - blend(others, labels, synthetic.MIN_OTHER_WEIGHT)
    )
    assert apart[labels != others].mean(axis=(1, 2)).min() > 0.01
    assert (blend(labels, others, 0.0) == synthetic.distance_outside(labels, u, v)).all()


def test_linear_model_cannot_learn_it(generated):
    # The default network comes to some 89 % in 5 epochs of the default set (docs/results.md).
    train_images, train_labels, test_images, test_labels = generated

    def features(images):  # every second pixel and the constant
        pixels = images[:, ::2, ::2].reshape(len(images), -1) / np.float32(255) - np.float32(0.5)
        return np.concatenate([pixels, np.ones((len(images), 1), np.float32)], axis=1)

    inputs, targets = features(train_images), np.eye(10, dtype=np.float32)[train_labels]
    covariance = inputs.T @ inputs
    for ridge in (1, 100, 3_000):
        weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance), dtype=np.float32), inputs.T @ targets)
        accuracy = ((features(test_images) @ weights).argmax(1) == test_labels).mean()
        assert accuracy < 0.2, f"ridge {ridge}: {accuracy}"
