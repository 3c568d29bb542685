"""Vary a batch of training images at random, as a pure function of (seed, step, image, epoch).

This is TensorFlow graph code for use inside a `tf.function` on a worker. It is vectorised, and draws random numbers
separately for each image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial

import tensorflow as tf

from ps_cluster.config.augmentation import Augmentation
from ps_cluster.config.datasets import ImageSettings, Inputs, NetworkOutputs
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.config.schedules import ImageScale
from ps_cluster.data.batches import Batch


class Stream(IntEnum):
    """The streams of random numbers. Each transformation of images draws its numbers from its own stream.

    The numbers that it draws therefore do not depend on which other transformations are turned on.
    """

    CROP = 0
    FLIP = 1
    HUE = 2
    SATURATION = 3
    CONTRAST = 4
    CUTOUT = 5
    BRIGHTNESS = 6


def augment(
    inputs: Mapping[str, tf.Tensor], batch: Batch, spec: ExampleSpec, settings: ImageSettings
) -> dict[str, tf.Tensor]:
    """Return the inputs of a batch, with its images randomly augmented. A variation that is turned off takes no time.

    `inputs`: tensors [B, ...] by the names of the inputs, with a static B. If several inputs are images, all of them
    get the same variations. `settings`: the section `data` of the run's settings.
    """
    return {
        name: augment_images(field, rows, batch, settings.augmentation) if field.is_image else rows
        for (name, rows), field in zip(inputs.items(), spec.inputs.values())
    }


def augment_images(field: ArrayField, images: tf.Tensor, batch: Batch, settings: Augmentation) -> tf.Tensor:
    """Crop and flip images, vary their hue, saturation, brightness and contrast, then cut out a square, in this order.

    `images`: uint8 [B, H, W, C], B static. `field`: the field of the images, with their shape and mean colour. The
    result has pixels 0..255: uint8, or unrounded float32 if the settings vary colours.
    """
    batch_size = images.shape[0]
    draw = partial(_uniform, batch.seed, batch.step)
    if settings.crop_padding_pixels or settings.flip != "none":
        padding = settings.crop_padding_pixels
        shifts = draw(Stream.CROP, [2, batch_size], -padding, padding + 1, tf.int32)
        if settings.flip == "alternating":
            mirrored = alternating_flips(batch.ids, batch.epochs, seed=batch.seed)
        elif settings.flip == "random":
            mirrored = tf.equal(draw(Stream.FLIP, [batch_size], 0, 2, tf.int32), 1)
        else:
            mirrored = tf.zeros([batch_size], tf.bool)
        images = crop_and_flip(images, shifts, mirrored)
    if settings.hue_delta or settings.saturation_range != (1, 1):
        turns = draw(Stream.HUE, [batch_size], -settings.hue_delta, settings.hue_delta)
        factors = draw(Stream.SATURATION, [batch_size], *settings.saturation_range)
        images = adjust_hue_and_saturation(tf.cast(images, tf.float32), turns, factors)
    if settings.brightness_delta:
        changes = draw(Stream.BRIGHTNESS, [batch_size], -settings.brightness_delta, settings.brightness_delta)
        images = adjust_brightness(tf.cast(images, tf.float32), changes)
    if settings.contrast_range != (1, 1):
        factors = draw(Stream.CONTRAST, [batch_size], *settings.contrast_range)
        images = adjust_contrast(tf.cast(images, tf.float32), factors)
    if settings.cutout_pixels:
        height, width = images.shape[1:3]
        rows, columns = (draw(Stream.CUTOUT, [2, batch_size], 0, side, tf.int32) for side in (height, width))
        centres = tf.stack([rows[0], columns[1]])
        images = cut_out(images, centres, settings.cutout_pixels, field.mean)
    return images


def resized(
    inputs: Mapping[str, tf.Tensor], spec: ExampleSpec, scales: Sequence[ImageScale], progress: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return the inputs of a batch, with images scaled down as `scales` says for this point of the training.

    This is progressive resizing, as in the entries of fast.ai to DAWNBench (2018). A pixel of a scaled image is the
    mean of the area that it replaces. `inputs`: float32 [B, ...] by the names of the inputs. Images [B, H, W, C] become
    [B, h, w, C], where h and w are not static. `progress`: float32 [], the share of all steps that is done.
    """
    phase = tf.searchsorted([scale.until for scale in scales], progress[None], "right")[0]

    def smaller(images: tf.Tensor) -> tf.Tensor:
        sides = [[scale.side(side) for side in images.shape[1:3]] for scale in scales]
        size = tf.gather([*sides, list(images.shape[1:3])], phase)
        return tf.cond(phase < len(scales), lambda: tf.image.resize(images, size, "area"), lambda: images)

    return {name: smaller(rows) if spec.inputs[name].is_image else rows for name, rows in inputs.items()}


def alternating_flips(ids: tf.Tensor, epochs: tf.Tensor, *, seed: int) -> tf.Tensor:
    """Return which images to mirror, bool [B]. Epoch 0 mirrors a random half; from then on the halves alternate.

    Two consecutive epochs thus show each image both ways (Jordan 2024, arXiv:2404.00498, section 3.6). A keyed hash of
    the image's id decides whether epoch 0 mirrors it, so no state is needed. `ids`, `epochs`: int64 [B].
    """
    parity = tf.strings.to_hash_bucket_strong(tf.strings.as_string(ids), 2, key=[seed, int(Stream.FLIP)])
    return tf.equal((parity + epochs) % 2, 1)


def crop_and_flip(images: tf.Tensor, shifts: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """Shift each image, filling its borders by reflection (the outermost pixels are not repeated), then mirror some.

    A single gather of pixels gives the result of `tf.pad(..., "REFLECT")`, a crop and `tf.image.flip_left_right`.
    `images`: [B, H, W, C]. `shifts`: int32 [2, B], the offsets of each crop in rows (down) and columns (right). They
    are smaller than the sides of the image. `mirrored`: bool [B].
    """
    batch_size, height, width, channels = images.shape
    line = tf.range(width)
    across = tf.where(mirrored[:, tf.newaxis], width - 1 - line, line)
    rows = _reflected(tf.range(height) + shifts[0][:, tf.newaxis], height)
    columns = _reflected(across + shifts[1][:, tf.newaxis], width)
    first_pixels = height * width * tf.range(batch_size)
    sources = (first_pixels[:, tf.newaxis] + width * rows)[:, :, tf.newaxis] + columns[:, tf.newaxis, :]
    return tf.gather(tf.reshape(images, [-1, channels]), sources)


def adjust_hue_and_saturation(images: tf.Tensor, turns: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Apply `tf.image.adjust_hue`, then `tf.image.adjust_saturation`, in one conversion to HSV and back.

    `images`: float32 [B, H, W, C], pixels 0..255 (hue and saturation do not depend on the scale). `turns`: float32 [B],
    fractions of the hue circle. `factors`: float32 [B]; saturation is limited to 1.
    """
    hue, saturation, value = tf.unstack(tf.image.rgb_to_hsv(images), axis=-1)
    hue += turns[:, tf.newaxis, tf.newaxis]
    hue -= tf.floor(hue)  # floormod takes five times as long
    saturation = tf.minimum(saturation * factors[:, tf.newaxis, tf.newaxis], 1)
    return tf.image.hsv_to_rgb(tf.stack([hue, saturation, value], axis=-1))


def adjust_brightness(images: tf.Tensor, changes: tf.Tensor) -> tf.Tensor:
    """Change the brightness of each image by adding the same number to all of its pixels.

    `images`: float32 [B, H, W, C], pixels 0..255. `changes`: float32 [B], fractions of this range.
    The result is clipped to this range.
    """
    return tf.clip_by_value(images + 255 * changes[:, tf.newaxis, tf.newaxis, tf.newaxis], 0, 255)


def adjust_contrast(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Apply `tf.image.adjust_contrast` around each image's own channel means, with a factor per image, float32 [B].

    `images`: float32 [B, H, W, C], pixels 0..255; the result is clipped to this range.
    """
    height, width, channels = images.shape[1:]
    # Broadcasting over three dimensions is faster than over four.
    pixels = tf.reshape(images, [-1, height * width, channels])
    factors = factors[:, tf.newaxis, tf.newaxis]
    means = tf.reduce_mean(pixels, axis=1, keepdims=True)
    return tf.reshape(tf.clip_by_value(pixels * factors + means * (1 - factors), 0, 255), tf.shape(images))


def cut_out(images: tf.Tensor, centres: tf.Tensor, side: int, colour: Sequence[float]) -> tf.Tensor:
    """Fill a square of each image with a colour. The square may cross the edge (DeVries & Taylor 2017, arXiv:1708.04552).

    Args:
      images: uint8 or float32 [B, H, W, C], pixels 0..255.
      centres: int32 [2, B], row and column. If `side` is even, the square reaches one pixel further up and left than
        down and right.
      side: the side of the square, in pixels.
      colour: a value for each channel, namely the mean of the training images, because normalisation maps it to 0.
    """
    height, width, channels = images.shape[1:]

    def covered(size: int, centre: tf.Tensor) -> tf.Tensor:
        from_start = tf.range(size) - (centre - side // 2)[:, tf.newaxis]
        return (from_start >= 0) & (from_start < side)

    rows, columns = covered(height, centres[0]), covered(width, centres[1])
    inside = tf.reshape(rows[:, :, tf.newaxis] & columns[:, tf.newaxis, :], [-1])
    # Append a pixel of `colour`, and gather from all pixels. tf.where with a broadcast mask takes twice as long.
    pixels = tf.reshape(images, [-1, channels])
    count = tf.shape(pixels)[0]
    sources = tf.where(inside, count, tf.range(count))
    palette = tf.concat([pixels, tf.constant([[round(value) for value in colour]], images.dtype)], axis=0)
    return tf.reshape(tf.gather(palette, sources), tf.shape(images))


def _reflected(positions: tf.Tensor, side: int) -> tf.Tensor:
    positions = tf.abs(positions)
    return tf.minimum(positions, 2 * (side - 1) - positions)


def _uniform(
    seed: int, step: tf.Tensor, stream: Stream, shape: list[int], low: float, high: float, dtype: tf.DType = tf.float32
) -> tf.Tensor:
    """Return random numbers in [low, high) from one stream of a step, or `low` if `low` equals `high`."""
    step_seed = tf.stack([tf.constant(seed, tf.int64), step])
    return tf.random.stateless_uniform(shape, tf.random.fold_in(step_seed, int(stream)), low, high, dtype)


def mean_over_views(outputs: NetworkOutputs, inputs: Inputs) -> tf.Tensor:
    """Return the weighted mean of a network's outputs for six views of each image, float32 [B, outputs].

    The views are the image, the image shifted by one pixel up and left, the image shifted by one pixel down and right
    (with reflected borders), and the mirror images of these three. The two views without a shift have a weight of 1/4
    each, the other four of 1/8 each. This is the multi-crop evaluation of airbench (Jordan 2024, arXiv:2404.00498,
    section 3.5). `inputs`: the network's only input, images float32 [B, H, W, C].
    """
    ((name, images),) = inputs.items()
    height, width = images.shape[1:3]
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    shifted = padded[:, :height, :width], padded[:, 2:, 2:]

    def both_ways(view: tf.Tensor) -> tf.Tensor:
        return (outputs({name: view}) + outputs({name: tf.reverse(view, axis=[2])})) / 2

    return both_ways(images) / 2 + (both_ways(shifted[0]) + both_ways(shifted[1])) / 4
