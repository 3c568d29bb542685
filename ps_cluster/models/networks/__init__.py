"""The networks of this package, one in each file. This module has the first and last layers that they share.

TensorFlow is not imported before a network is built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import Network, OwnSettings
from ps_cluster.config.objectives import OBJECTIVES, ArrayField, ExampleSpec

UNKNOWN = 127.5  # the mean and the deviation of pixels if they are unknown: standardised values then go from -1 to 1
ADAM: Mapping[str, Any] = {"rule": "adam", "momentum": 0.9, "weight_decay": 0.0, "learning_rate_factors": []}
"""The section `optimizer` of a recipe with Adam, without its learning rate."""
MUON: Mapping[str, Any] = {"rule": "muon", "momentum": 0.9, "weight_decay": 0.0, "learning_rate_factors": []}
"""The section `optimizer` of a recipe with Muon, without its learning rate."""
MUON_ADAM: Mapping[str, Any] = {**MUON, "rule": "muon_adam"}
"""The section `optimizer` of a recipe with Muon for matrices and Adam for other weights, without a learning rate."""
Units = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, max_length=20)]
"""The numbers of units of successive dense layers."""


def tuned_settings(*modes: str, workers: int = 3, batch: int = 128, **optimizer: Any) -> list[dict[str, Any]]:
    """Return an entry for each of `modes`, to put under "modes" in a network's recipe (the network's default settings).

    Each entry (`config.recipe.FoundRates`) has optimizer settings that were found on held-out examples, for a mode, a
    number of workers and a batch size.

    Args:
      workers: the number of workers for which the settings were found; 1 for mode single.
      batch: the batch size of a worker for which the settings were found.
      optimizer: settings of the section `optimizer`. They replace those that the recipe has for all modes.
    """
    return [
        {"mode": mode, "workers": workers, "batch_size_per_worker": batch, "optimizer": optimizer} for mode in modes
    ]


def mean_and_std(field: ArrayField) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel. If a channel is constant, return 1 as its deviation."""
    channels = field.shape[-1] if field.shape else 1
    mean, std = (list(given) or [UNKNOWN] * channels for given in (field.mean, field.std))
    return mean, [value or 1.0 for value in std]


def scale_and_offset(field: ArrayField) -> tuple[list[float], list[float]]:
    """Return factor and summand that standardise each channel: 1 / deviation, and -mean / deviation."""
    mean, std = mean_and_std(field)
    return [1 / value for value in std], [-middle / value for middle, value in zip(mean, std, strict=True)]


def pixels(image: ArrayField, *, any_size: bool = False) -> list[keras.layers.Layer]:
    """Return an input layer for images `[B, *image.shape]`, 0..255, and a layer that standardises their channels.

    The second layer returns float32. `any_size`: whether images of any height and width are allowed.
    """
    scale, offset = scale_and_offset(image)
    # TensorFlow broadcasts a row of 96 values over an image several times as fast as a row of 3 (1 ms less per step).
    row = 1 if any_size else image.shape[1]
    return [
        keras.Input((None, None, image.shape[2]) if any_size else image.shape, name="pixels"),
        keras.layers.Rescaling([scale] * row, [offset] * row, dtype="float32", name="normalise"),
    ]


def inputs_of(examples: ExampleSpec) -> dict[str, keras.KerasTensor]:
    """Return an input layer for each input of the examples, by name: int32 for category codes, float32 for others."""
    return {
        name: keras.Input(field.shape, name=name, dtype="int32" if field.codes else "float32")
        for name, field in examples.inputs.items()
    }


def flat_numbers(given: keras.KerasTensor, name: str, field: ArrayField) -> keras.KerasTensor:
    """Flatten an input of numbers, and standardise it. Return it as float32 [B, n]."""
    width = math.prod(field.shape)
    flat = keras.layers.Reshape((width,), name=f"{name}_flat")(given)
    if not field.mean and field.dtype != "uint8":  # its scale is not known
        return keras.layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(flat)
    scale, offset = scale_and_offset(field)
    times = width // len(scale)
    return keras.layers.Rescaling(scale * times, offset * times, dtype="float32", name=f"{name}_norm")(flat)


def embeddings(
    given: keras.KerasTensor, name: str, field: ArrayField, width: int | None = None
) -> list[keras.KerasTensor]:
    """Embed each column of an input of category codes, [B, columns]. Return the embedding of each column, [B, width].

    Each column has its own table.

    Args:
      width: the number of values in a row of a table. If it is None, it is the square root of the table's number of
        rows, but at least 2 and at most 32.
    """
    return [
        keras.layers.Embedding(rows, width or min(32, max(2, round(math.sqrt(rows)))), name=f"{name}_{place}")(
            given[:, place]
        )
        for place, rows in enumerate(field.codes)
    ]


def columns_of(
    examples: ExampleSpec, row_width: int
) -> tuple[dict[str, keras.KerasTensor], list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Return the input layers by name, an embedding for each categorical column, and all numeric inputs, standardised.

    `row_width`: the number of values in an embedding.
    """
    inputs, fields = inputs_of(examples), examples.inputs.items()
    rows = [row for name, one in fields if one.codes for row in embeddings(inputs[name], name, one, row_width)]
    return inputs, rows, [flat_numbers(inputs[name], name, one) for name, one in fields if not one.codes]


def dense_layers(x: keras.KerasTensor, units: Sequence[int], name: str) -> keras.KerasTensor:
    """Return `x` [B, n] after dense layers with ReLU, [B, units[-1]]."""
    for place, count in enumerate(units):
        x = keras.layers.Dense(count, "relu", name=f"{name}_{place}")(x)
    return x


def joined(parts: Sequence[keras.KerasTensor], name: str | None = None) -> keras.KerasTensor:
    """Join tensors [B, n] along their last axis. A single tensor is returned unchanged."""
    return parts[0] if len(parts) == 1 else keras.layers.Concatenate(name=name)(parts)


def scores(outputs: int) -> list[keras.layers.Layer]:
    """Return the last layers: a dense layer with `outputs` units, whose results are converted to float32."""
    return [
        keras.layers.Dense(outputs, name="logits"),
        keras.layers.Activation("linear", dtype="float32", name="scores"),
    ]


def scored(x: keras.KerasTensor, outputs: int) -> keras.KerasTensor:
    """Apply the last layers to `x` [B, n]. Return the scores, [B, outputs]."""
    for layer in scores(outputs):
        x = layer(x)
    return x


def network_of(inputs: Mapping[str, keras.KerasTensor], outputs: keras.KerasTensor, name: str) -> keras.Model:
    """Return a model. It takes a single input as an array, and several inputs as a dictionary of arrays by name."""
    from ps_cluster.models.flat import as_arguments  # imports TensorFlow

    return keras.Model(as_arguments(inputs), outputs, name=name)


def fewest_outputs(examples: ExampleSpec) -> int:
    """Return the fewest outputs that the objective allows. For two classes this is 1: the score of the second class."""
    return min(OBJECTIVES[examples.objective].output_counts(examples))


class NetworkOfKeys(Network[OwnSettings]):
    """A network for examples with categorical columns, which are embedded. Columns of numbers are optional."""

    scored_at_once = 1000
    recipe = {
        "training": {"epochs": 1.0, "label_smoothing": 0.0, "batch_size_per_worker": 512},
        "optimizer": {**ADAM, "learning_rate": 0.005},
    }

    def check(self, examples: ExampleSpec, settings: OwnSettings) -> None:
        """Refuse examples without a categorical column."""
        if not any(field.codes for field in examples.inputs.values()):
            raise ValueError("it takes categorical columns, such as those of data set clicks or of a table")


class ImageNetwork(Network[OwnSettings]):
    """A network for images. `smallest_side`: the smallest height or width, in pixels, that its images may have."""

    smallest_side = 1
    tuned_on = 50_000  # the training images of CIFAR-10

    def check(self, examples: ExampleSpec, settings: OwnSettings) -> None:
        """Refuse examples that are not images, and images that are too small for the convolutions."""
        height, width, _ = examples.image(self.name).shape
        if min(height, width) < self.smallest_side:
            raise ValueError(f"its layers shrink the images, so each side needs at least {self.smallest_side} pixels")
