"""Average the outputs for an image over six views of it (test-time augmentation)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

Inputs = Mapping[str, tf.Tensor]


def mean_over_views(outputs: Callable[[Inputs], tf.Tensor], inputs: Inputs) -> tf.Tensor:
    """Return outputs by the multi-crop evaluation of airbench (Jordan 2024, arXiv:2404.00498, section 3.5).

    The views: the image; shifted by one pixel up and left; shifted down and right (borders reflected); each also
    mirrored. The two that are not shifted weigh 1/4 each, the other four 1/8 each.

    Args:
      outputs: name → float32 [B, H, W, C] to float32 [B, outputs].
      inputs: the same, of one image.
    Returns:
      float32 [B, outputs].
    """
    ((name, images),) = inputs.items()
    height, width = images.shape[1:3]
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    shifted = padded[:, :height, :width], padded[:, 2:, 2:]

    def both_ways(view: tf.Tensor) -> tf.Tensor:
        return (outputs({name: view}) + outputs({name: tf.reverse(view, axis=[2])})) / 2

    return both_ways(images) / 2 + (both_ways(shifted[0]) + both_ways(shifted[1])) / 4
