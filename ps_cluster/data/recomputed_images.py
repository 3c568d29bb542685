"""Recompute the variations of a batch's images, one image at a time, with numpy and TensorFlow's functions for images.

The workers' graphs do the same in `data/augment.py`, for all images of a batch at once. The two modules share only the
random draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ps_cluster.config.augmentation import Augmentation
from ps_cluster.config.schedules import ImageScale
from ps_cluster.data.augment import Stream
from ps_cluster.data.recomputed_batches import ExampleIds


def varied(
    images: np.ndarray, examples: ExampleIds, settings: Augmentation, mean: Sequence[float], *, seed: int, step: int
) -> np.ndarray:
    """Return the images of a step as the network gets them: shifted, mirrored, recoloured, and with a square cut out.

    `images`: uint8 [B, H, W, C]; they become float32, pixels 0..255. `mean`: the mean colour, a value for each channel.
    """

    def draw(stream: Stream, shape: list[int], low: float, high: float, dtype: tf.DType = tf.float32) -> np.ndarray:
        key = tf.random.fold_in(tf.constant([seed, step], tf.int64), int(stream))
        drawn: np.ndarray = tf.random.stateless_uniform(shape, key, low, high, dtype).numpy()
        return drawn

    count, height, width = images.shape[:3]
    padding = settings.crop_padding_pixels
    shifts = draw(Stream.CROP, [2, count], -padding, padding + 1, tf.int32).T if padding else np.zeros((count, 2), int)
    turns = draw(Stream.HUE, [count], -settings.hue_delta, settings.hue_delta)
    saturations = draw(Stream.SATURATION, [count], *settings.saturation_range)
    brightness = draw(Stream.BRIGHTNESS, [count], -settings.brightness_delta, settings.brightness_delta)
    contrasts = draw(Stream.CONTRAST, [count], *settings.contrast_range)
    rows, columns = (draw(Stream.CUTOUT, [2, count], 0, side, tf.int32) for side in (height, width))
    mirrored = np.zeros(count, bool)
    if settings.flip == "random":
        mirrored = draw(Stream.FLIP, [count], 0, 2, tf.int32) == 1
    elif settings.flip == "alternating":
        texts = [str(one) for one in examples.ids.tolist()]
        first = tf.strings.to_hash_bucket_strong(texts, 2, key=[seed, int(Stream.FLIP)]).numpy()
        mirrored = (first + examples.epochs) % 2 == 1

    found = np.empty(images.shape, np.float32)
    for index, image in enumerate(images):
        padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode="reflect")
        top, left = padding + shifts[index]
        image = padded[top : top + height, left : left + width]
        if mirrored[index]:
            image = image[:, ::-1]
        image = image.astype(np.float32)
        if settings.hue_delta or settings.saturation_range != (1, 1):
            image = tf.image.adjust_saturation(tf.image.adjust_hue(image, turns[index]), saturations[index]).numpy()
        if settings.brightness_delta:
            image = np.clip(tf.image.adjust_brightness(image, 255 * brightness[index]).numpy(), 0, 255)
        if settings.contrast_range != (1, 1):
            image = np.clip(tf.image.adjust_contrast(image, contrasts[index]).numpy(), 0, 255)
        if side := settings.cutout_pixels:
            top, left = rows[0, index] - side // 2, columns[1, index] - side // 2
            image[max(0, top) : max(0, top + side), max(0, left) : max(0, left + side)] = np.round(mean)
        found[index] = image
    return found


def resized(images: np.ndarray, scales: Sequence[ImageScale], progress: float) -> np.ndarray:
    """Return images, scaled down as `scales` says for this point of the training.

    `images`: float32 [B, H, W, C]. `progress`: the share of the steps that is done.
    """
    scale = next((scale for scale in scales if progress < np.float32(scale.until)), None)
    if scale is None:
        return images
    smaller: np.ndarray = tf.image.resize(images, [scale.side(side) for side in images.shape[1:3]], "area").numpy()
    return smaller
