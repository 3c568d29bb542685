"""The first and last layers that the networks share. No TensorFlow before they are used."""

from __future__ import annotations

from ps_cluster.catalogue.examples import Field
from ps_cluster.catalogue.lazily import keras

UNKNOWN = 127.5  # mean and deviation of pixels whose own are not known: they then go from -1 to 1


def mean_and_std(image: Field) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel, in pixels; a channel without variation has deviation 1."""
    channels = image.shape[-1]
    mean, std = (list(given) or [UNKNOWN] * channels for given in (image.mean, image.std))
    return mean, [value or 1.0 for value in std]


def pixels(image: Field) -> list[keras.layers.Layer]:
    """Return the input `[B, *image.shape]`, 0..255, and its float32 normalisation per channel."""
    mean, std = mean_and_std(image)
    row = image.shape[1]  # TensorFlow broadcasts a row of 96 values over an image several times as fast as one of 3
    return [
        keras.Input(image.shape, name="pixels"),
        keras.layers.Rescaling(
            scale=[[1 / value for value in std]] * row,
            offset=[[-middle / value for middle, value in zip(mean, std, strict=True)]] * row,
            dtype="float32",
            name="normalise",
        ),
    ]


def scores(outputs: int) -> list[keras.layers.Layer]:
    """Return the dense layer of an example's `outputs`, always in float32."""
    return [
        keras.layers.Dense(outputs, name="logits"),
        keras.layers.Activation("linear", dtype="float32", name="scores"),
    ]
