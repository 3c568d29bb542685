"""The networks of the package, a file for each, and the first and last layers that they share.

TensorFlow is not imported before a network is built.
"""

from __future__ import annotations

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import Network, NetworkSettings
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.objectives import Field as ArrayField

UNKNOWN = 127.5  # mean and deviation of pixels whose own are not known: they then go from -1 to 1


def mean_and_std(field: ArrayField) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel; a channel without variation has deviation 1."""
    channels = field.shape[-1] if field.shape else 1
    mean, std = (list(given) or [UNKNOWN] * channels for given in (field.mean, field.std))
    return mean, [value or 1.0 for value in std]


def scale_and_offset(field: ArrayField) -> tuple[list[float], list[float]]:
    """Return what standardises each channel."""
    mean, std = mean_and_std(field)
    return [1 / value for value in std], [-middle / value for middle, value in zip(mean, std, strict=True)]


def pixels(image: ArrayField, *, any_size: bool = False) -> list[keras.layers.Layer]:
    """Return the input `[B, *image.shape]`, 0..255, and its float32 normalisation per channel.

    Args:
      any_size: leave height and width open.
    """
    scale, offset = scale_and_offset(image)
    # TensorFlow broadcasts a row of 96 values over an image several times as fast as one of 3 (1 ms of a step).
    row = 1 if any_size else image.shape[1]
    return [
        keras.Input((None, None, image.shape[2]) if any_size else image.shape, name="pixels"),
        keras.layers.Rescaling([scale] * row, [offset] * row, dtype="float32", name="normalise"),
    ]


def scores(outputs: int) -> list[keras.layers.Layer]:
    """Return the dense layer of an example's `outputs`, always in float32."""
    return [
        keras.layers.Dense(outputs, name="logits"),
        keras.layers.Activation("linear", dtype="float32", name="scores"),
    ]


class ImageNetwork(Network):
    """A network for images. `smallest_side`: the fewest pixels of a side that it can be built for."""

    smallest_side = 1

    def check(self, examples: ExampleSpec, settings: NetworkSettings) -> None:
        """Refuse examples that are no images, and images that are too small for the convolutions."""
        height, width, _ = examples.image(self.name).shape
        if min(height, width) < self.smallest_side:
            raise ValueError(f"its layers shrink the images, so each side needs at least {self.smallest_side} pixels")
