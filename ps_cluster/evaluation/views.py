"""Average the scores of an image over six views of it (test-time augmentation)."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

SIDE = 32


def mean_over_views(score: Callable[[tf.Tensor], tf.Tensor], images: tf.Tensor) -> tf.Tensor:
    """Return scores by the multi-crop evaluation of airbench (Jordan 2024, arXiv:2404.00498, section 3.5).

    The views: the image; shifted by one pixel up and left; shifted down and right (borders reflected); each also
    mirrored. The two that are not shifted weigh 1/4 each, the other four 1/8 each.

    Args:
      score: float32 [B, 32, 32, 3] → float32 [B, classes].
      images: float32 [B, 32, 32, 3].
    Returns:
      float32 [B, classes].
    """
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    shifted = padded[:, :SIDE, :SIDE], padded[:, 2:, 2:]

    def both_ways(view: tf.Tensor) -> tf.Tensor:
        return (score(view) + score(tf.reverse(view, axis=[2]))) / 2

    return both_ways(images) / 2 + (both_ways(shifted[0]) + both_ways(shifted[1])) / 4
