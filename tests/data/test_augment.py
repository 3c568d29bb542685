import hashlib

import numpy as np
import pytest
import tensorflow as tf
from pydantic import ValidationError

from ps_cluster.config.augmentation import Augmentation
from ps_cluster.config.schedules import ImageScale
from ps_cluster.data.augment import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue_and_saturation,
    alternating_flips,
    augment_images,
    crop_and_flip,
    cut_out,
    mean_over_views,
    resized,
)
from ps_cluster.data.batches import Batch
from ps_cluster.data.recomputed_batches import ExampleIds
from ps_cluster.data.recomputed_images import varied
from ps_cluster.data.sets import cifar
from tests.helpers.data import random_images

FIELD = cifar.SPEC.inputs["image"]
MEAN_COLOUR = (125, 123, 114)  # of the CIFAR-10 training set; normalisation maps it to about 0
EVERYTHING = Augmentation(
    crop_padding_pixels=4,
    flip="alternating",
    hue_delta=0.1,
    brightness_delta=0.1,
    contrast_range=(0.5, 1.5),
    saturation_range=(0.5, 1.5),
    cutout_pixels=8,
)


def augmented(images, *, step=0, epoch=0, seed=0, **settings) -> np.ndarray:
    count = len(images)
    epochs = tf.fill([count], tf.constant(epoch, tf.int64))
    step = tf.constant(step, tf.int64)
    ids = tf.range(count, dtype=tf.int64)
    batch = Batch(seed, step, ids, epochs)
    return augment_images(FIELD, tf.constant(images), batch, Augmentation(**settings)).numpy()


def fingerprint(**arguments) -> str:
    return hashlib.sha256(augmented(random_images(16)[0], **EVERYTHING.model_dump(), **arguments)).hexdigest()


@pytest.mark.parametrize("settings", [EVERYTHING.model_dump(), {"brightness_delta": 0.3, "flip": "random"}])
def test_images_are_varied_as_the_proof_computes_it_again(settings):
    images, options = random_images(24)[0], Augmentation(**settings)
    examples = ExampleIds(np.arange(24), np.full(24, 3))
    again = varied(images, examples, options, FIELD.mean, seed=5, step=7)
    np.testing.assert_allclose(augmented(images, step=7, epoch=3, seed=5, **settings), again, atol=0.02)


def same_images(a, b) -> np.ndarray:
    return (a == b).all(axis=(1, 2, 3))


def test_the_default_settings_change_nothing():
    images = random_images(8)[0]
    result = augmented(images)
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, images)


@pytest.mark.parametrize("padding", [1, 4, 31])
def test_crop_and_flip_is_pad_by_reflection_then_crop_then_mirror(padding):
    images = random_images(40)[0]
    rng = np.random.default_rng(1)
    shifts = rng.integers(-padding, padding + 1, (2, 40))
    shifts[:, :2] = [[-padding, padding], [padding, -padding]]
    mirrored = rng.random(40) < 0.5
    result = crop_and_flip(tf.constant(images), tf.constant(shifts, tf.int32), tf.constant(mirrored))
    for image, down, right, mirror, got in zip(images, *shifts, mirrored, result, strict=True):
        padded = tf.pad(image, [[padding, padding], [padding, padding], [0, 0]], "REFLECT")
        expected = tf.image.crop_to_bounding_box(padded, padding + down, padding + right, 32, 32)
        expected = tf.image.flip_left_right(expected) if mirror else expected
        np.testing.assert_array_equal(got, expected)


def test_every_crop_is_drawn_and_no_other():
    images = np.repeat(random_images(1)[0], 500, axis=0)
    padded = np.pad(images[0], [(2, 2), (2, 2), (0, 0)], mode="reflect")
    crops = {padded[y : y + 32, x : x + 32].tobytes(): 0 for y in range(5) for x in range(5)}
    for image in augmented(images, crop_padding_pixels=2):
        crops[image.tobytes()] += 1
    assert len(crops) == 25
    assert min(crops.values()) > 5


def test_a_random_flip_mirrors_about_half_of_the_images_and_others_in_the_next_step():
    images = random_images(200)[0]
    first = same_images(augmented(images, flip="random", step=1), images[:, :, ::-1])
    second = same_images(augmented(images, flip="random", step=2), images[:, :, ::-1])
    assert 70 < first.sum() < 130
    assert 70 < (first != second).sum() < 130
    np.testing.assert_array_equal(augmented(images, flip="random", step=1)[~first], images[~first])


def test_an_alternating_flip_shows_both_sides_of_each_image_in_two_epochs():
    images = random_images(200)[0]
    shown = [augmented(images, flip="alternating", epoch=epoch, step=epoch) for epoch in range(4)]
    flipped = [same_images(epoch, images[:, :, ::-1]) for epoch in shown]
    assert 70 < flipped[0].sum() < 130
    np.testing.assert_array_equal(flipped[1], ~flipped[0])
    np.testing.assert_array_equal(flipped[2], flipped[0])
    np.testing.assert_array_equal(flipped[3], ~flipped[0])


def test_an_alternating_flip_depends_on_the_image_and_not_on_its_place_in_the_batch():
    ids = np.random.default_rng(0).permutation(1000)
    epochs = ids % 3
    flips = alternating_flips(tf.constant(ids), tf.constant(epochs), seed=7).numpy()
    order = np.argsort(ids)
    in_order = alternating_flips(tf.constant(ids[order]), tf.constant(epochs[order]), seed=7).numpy()
    np.testing.assert_array_equal(flips[order], in_order)


def test_the_first_alternating_flip_differs_between_seeds():
    ids, epochs = tf.range(1000, dtype=tf.int64), tf.zeros([1000], tf.int64)
    first, second = (alternating_flips(ids, epochs, seed=seed).numpy() for seed in (0, 1))
    assert 400 < (first != second).sum() < 600


def colourful_images() -> np.ndarray:
    """Random images, and one with all the corners of the colour cube: black, white, greys and pure colours."""
    images = random_images(12)[0].astype(np.float32)
    images[0].reshape(-1, 3)[:27] = np.stack(np.meshgrid(*[[0, 128, 255]] * 3), axis=-1).reshape(-1, 3)
    return images


def test_hue_and_saturation_are_those_of_tf_image():
    images = colourful_images()
    turns = np.linspace(-0.5, 0.5, len(images), dtype=np.float32)
    factors = np.linspace(3, 0, len(images), dtype=np.float32)
    result = adjust_hue_and_saturation(tf.constant(images), tf.constant(turns), tf.constant(factors))
    for image, turn, factor, got in zip(images, turns, factors, result, strict=True):
        expected = 255 * tf.image.adjust_saturation(tf.image.adjust_hue(image / 255, turn), factor)
        np.testing.assert_allclose(got, expected, atol=0.01)


@pytest.mark.parametrize(
    ("adjust", "draws", "of_one_image"),
    [
        (adjust_contrast, (0, 3), tf.image.adjust_contrast),
        (adjust_brightness, (-1, 1), lambda image, change: tf.image.adjust_brightness(image, 255 * change)),
    ],
)
def test_contrast_and_brightness_are_those_of_tf_image_clipped_to_pixels(adjust, draws, of_one_image):
    images = colourful_images()
    changes = np.linspace(*draws, len(images), dtype=np.float32)
    result = adjust(tf.constant(images), tf.constant(changes))
    for image, change, got in zip(images, changes, result, strict=True):
        np.testing.assert_allclose(got, np.clip(of_one_image(image, change), 0, 255), atol=0.01)


def test_brightness_changes_by_up_to_its_delta_both_ways():
    changes = augmented(np.full((300, 32, 32, 3), 128, np.uint8), brightness_delta=0.1)[:, 0, 0, 0] / 255 - 128 / 255
    assert -0.1 <= changes.min() < -0.095
    assert 0.095 < changes.max() <= 0.1


def test_hue_is_turned_by_up_to_its_delta_both_ways():
    reds = np.zeros((300, 32, 32, 3), np.uint8) + np.array([200, 0, 0], np.uint8)
    hue = tf.image.rgb_to_hsv(augmented(reds, hue_delta=0.1))[:, 0, 0, 0].numpy()
    turn = (hue + 0.5) % 1 - 0.5
    assert -0.1 <= turn.min() < -0.09
    assert 0.09 < turn.max() <= 0.1


def test_saturation_and_contrast_factors_fill_their_ranges():
    pinks = np.zeros((300, 32, 32, 3), np.uint8) + np.array([200, 100, 100], np.uint8)
    saturation = tf.image.rgb_to_hsv(augmented(pinks, saturation_range=(0.5, 1.5)))[:, 0, 0, 1].numpy() / 0.5
    stripes = np.where(np.arange(32) % 2, 90, 110).astype(np.uint8)[:, None] + np.zeros((300, 32, 32, 3), np.uint8)
    contrast = np.ptp(augmented(stripes, contrast_range=(0.5, 1.5)), axis=(1, 2, 3)) / 20
    for factors in (saturation, contrast):
        assert 0.499 < factors.min() < 0.52
        assert 1.48 < factors.max() < 1.501
    assert abs(np.corrcoef(saturation, contrast)[0, 1]) < 0.3


@pytest.mark.parametrize("side", [1, 7, 8, 32])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_cutout_blanks_a_square_that_may_stick_out(side, dtype):
    images = random_images(20)[0].astype(dtype)
    centres = np.random.default_rng(2).integers(0, 32, (2, 20))
    centres[:, :2] = [[0, 31], [31, 0]]
    result = cut_out(tf.constant(images), tf.constant(centres, tf.int32), side, FIELD.mean)
    for image, row, column, got in zip(images, *centres, result, strict=True):
        top, left = row - side // 2, column - side // 2
        image[max(top, 0) : top + side, max(left, 0) : left + side] = MEAN_COLOUR
        np.testing.assert_array_equal(got, image)


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({"crop_padding_pixels": 2, "flip": "random", "cutout_pixels": 8}, np.uint8),
        ({"hue_delta": 0.1}, np.float32),
        ({"saturation_range": (0.5, 1)}, np.float32),
        ({"brightness_delta": 0.9}, np.float32),
        ({"contrast_range": (1, 3)}, np.float32),
        (EVERYTHING.model_dump(), np.float32),
    ],
)
def test_images_stay_bytes_unless_colours_change_and_pixels_stay_in_range(settings, dtype):
    result = augmented(random_images(8)[0], **settings)
    assert result.shape == (8, 32, 32, 3)
    assert result.dtype == dtype
    assert 0 <= result.min() <= result.max() <= 255


def test_switching_one_transformation_on_does_not_change_the_draws_of_another():
    images = random_images(32)[0]
    cropped = augmented(images, crop_padding_pixels=4)
    both = augmented(images, crop_padding_pixels=4, flip="random")
    mirrored = same_images(both, cropped[:, :, ::-1])
    assert 0 < mirrored.sum() < 32
    assert (mirrored | same_images(both, cropped)).all()


@pytest.mark.parametrize("seed", [0, 2**31 - 1, 2**63 - 1])
def test_a_step_is_repeatable_and_differs_from_other_steps_and_seeds(seed):
    assert fingerprint(seed=seed, step=3) == fingerprint(seed=seed, step=3)
    assert len({fingerprint(seed=s, step=step) for s in (seed, 1) for step in (2, 3, 2**40)}) == 6


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("crop_padding_pixels", -1), ("flip", "sometimes"), ("hue_delta", 0.6), ("contrast_range", (1.5, 0.5)),
        ("saturation_range", (-1, 1)), ("saturation_range", (1, float("inf"))), ("cutout_pixels", -1), ("rotation", 10),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named_with_its_value(field, value):
    with pytest.raises(ValidationError) as caught:
        Augmentation(**{field: value})
    first = caught.value.errors()[0]
    assert first["loc"][0] == field
    assert first["input"] in (value, *(value if isinstance(value, tuple) else ()))


VIEWED = np.random.default_rng(0).uniform(0, 255, [4, 32, 32, 3]).astype(np.float32)


def test_the_six_views_and_their_weights():
    """Against numpy: every view's own pixels as its scores."""
    pixels = mean_over_views(lambda inputs: tf.reshape(inputs["image"], [4, -1]), {"image": tf.constant(VIEWED)})
    padded = np.pad(VIEWED, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    views = [(VIEWED, 1 / 4), (padded[:, :-2, :-2], 1 / 8), (padded[:, 2:, 2:], 1 / 8)]
    expected = sum(weight * (view + view[:, :, ::-1]) for view, weight in views)
    assert np.asarray(pixels) == pytest.approx(expected.reshape(4, -1), rel=1e-5)


SCALES = (ImageScale(scale=0.5, until=0.25), ImageScale(scale=0.75, until=0.6))


def smaller(images, progress):
    rows = tf.constant(images, tf.float32)
    return resized({"image": rows}, cifar.SPEC, SCALES, tf.constant(progress, tf.float32))["image"].numpy()


def test_images_are_smaller_at_first_and_whole_in_the_end():
    images = random_images(3)[0]
    sides = {progress: smaller(images, progress).shape[1:3] for progress in (0, 0.24, 0.25, 0.59, 0.6, 1)}
    assert sides == {0: (16, 16), 0.24: (16, 16), 0.25: (24, 24), 0.59: (24, 24), 0.6: (32, 32), 1: (32, 32)}
    assert np.array_equal(smaller(images, 1), images)


def test_a_pixel_of_a_smaller_image_is_the_mean_of_those_it_covers():
    images = random_images(3)[0]
    blocks = images.reshape(3, 16, 2, 16, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(smaller(images, 0), blocks, rtol=1e-5)
    # At 3/4 a pixel covers a whole one and a third of the next.
    first = (images[:, :2, :2] * np.outer([1, 1 / 3], [1, 1 / 3])[:, :, None]).sum(axis=(1, 2)) / (4 / 3) ** 2
    np.testing.assert_allclose(smaller(images, 0.5)[:, 0, 0], first, rtol=1e-5)


def test_images_are_not_made_smaller_than_16_pixels():
    assert [ImageScale(scale=0.5, until=1).side(side) for side in (64, 33, 28, 17, 9)] == [32, 16, 16, 16, 9]
