"""Builds a network by name, with its initial weights."""

from __future__ import annotations

import keras
import numpy as np

from ps_cluster.data.pixels import PIXEL_MEAN, PIXEL_STD
from ps_cluster.models import networks

BUILDERS = {
    "tutorial_cnn": networks.tutorial_cnn,
    "cifar_tf_cnn": networks.cifar_tf_cnn,
    "resnet_small": networks.resnet_small,
    "airbench": networks.airbench,
}
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
WHITENING_EXAMPLES = 2000


def build(
    name: str,
    classes: int,
    *,
    precision: str,
    seed: int,
    activation: str = "relu",
    whitening_images: np.ndarray | None = None,
) -> keras.Model:
    """A network with its initial weights, which are a function of `seed` (and of the images).

    Args:
      name: a key of `BUILDERS`.
      classes: number of scores the network gives.
      activation: a name that Keras knows.
      precision: "float32", or "bfloat16" to compute in it (variables stay float32).
      whitening_images: uint8 [N, 32, 32, 3] training images that airbench's first convolution is made from;
        None leaves it random, as for a network whose weights are loaded next.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[precision])
    try:
        keras.utils.set_random_seed(seed)
        model = BUILDERS[name](classes, activation)
    finally:
        keras.config.set_dtype_policy(before)
    if name == "airbench":
        _make_partial_identity(model)
        if whitening_images is not None:
            _whiten(model, whitening_images[:WHITENING_EXAMPLES])
    return model


def _make_partial_identity(model: keras.Model) -> None:
    """The first `in` filters of each 3x3 convolution pass their input through (Dirac initialisation; Jordan 2024, 3.3)."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D) and layer.kernel_size == (3, 3):
            kernel = np.array(layer.kernel)
            inputs = kernel.shape[2]
            kernel[..., :inputs] = 0
            kernel[1, 1, range(inputs), range(inputs)] = 1
            layer.kernel.assign(kernel)


def _whiten(model: keras.Model, images: np.ndarray) -> None:
    """Sets the 2x2 convolution to the eigenvectors of the patches' covariance and their negatives (Jordan 2024, 3.2)."""
    layer = model.get_layer("whiten")
    normalised = (images - np.array(PIXEL_MEAN, np.float32)) / np.array(PIXEL_STD, np.float32)
    patches = np.lib.stride_tricks.sliding_window_view(normalised, (2, 2), axis=(1, 2))  # [N, 31, 31, 3, 2, 2]
    flat = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 12)
    values, vectors = np.linalg.eigh(np.cov(flat, rowvar=False))
    filters = vectors / np.sqrt(values + 5e-4)
    layer.kernel.assign(np.concatenate([filters, -filters], axis=1).reshape(2, 2, 3, 24).astype(np.float32))
