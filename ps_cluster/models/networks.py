"""The first and last layers that the networks share. No TensorFlow before they are used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import ActivationSettings, Network, NetworkSettings
from ps_cluster.config.objectives import BYTES, ExampleSpec
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


# The network of airbench (Jordan 2024, arXiv:2404.00498, section 3). The defaults are its recipe for CIFAR-10.

PATCHES = 2_100_000  # that whitening is computed from, at most
PATCHES_AT_ONCE = 100_000  # in float32: of all at once the start would take longer, and some 200 MB more


class AirbenchSettings(ActivationSettings):
    activation: Literal["relu", "gelu", "silu"] = Field(default="gelu")
    width: float = Field(
        default=1.0, ge=0.0625, le=16, description="Multiplies the filters of its groups, 64, 256 and 256."
    )


class Airbench(ImageNetwork):
    name = "airbench"
    smallest_side = 9
    Settings = AirbenchSettings
    worker_mb = 400
    recipe = {
        "training": {"epochs": 7.0},
        "schedule": {"image_scales": [{"scale": 0.5, "until": 0.25}, {"scale": 0.75, "until": 0.75}]},
        "modes": [  # async is best at the default rate: docs/results.md, "Rates by mode"
            {"mode": "sync", "workers": 3, "batch_size_per_worker": 128, "learning_rate": 2.0, "momentum": 0.6},
            {"mode": "sync-ps", "workers": 3, "batch_size_per_worker": 128, "learning_rate": 2.0, "momentum": 0.6},
            {"mode": "single", "workers": 1, "batch_size_per_worker": 128, "learning_rate": 1.0, "momentum": 0.6},
        ],
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: AirbenchSettings) -> keras.Model:
        """Return the network: about 2.0 M parameters for CIFAR-10.

        A 2x2 whitening convolution; three groups of convolution, pooling, normalisation, activation, convolution,
        normalisation, activation; the largest value of each filter; a dense layer without bias, divided by 9. The moving
        statistics forget more slowly than the paper's (0.6 for a batch of 1,024): a worker's batch is a fraction
        of that.
        """
        activation = settings.activation
        layers = keras.layers
        image = examples.image(self.name)
        body = [
            # Two filters for each value of a patch: an eigenvector and its negative.
            layers.Conv2D(2 * 2 * 2 * image.shape[-1], 2, padding="valid", name="whiten"),
            layers.Activation(activation),
        ]
        for group, width in enumerate((64, 256, 256)):
            filters = round(width * settings.width)
            for half in range(2):
                body.append(layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"group{group}_conv{half}"))
                if half == 0:
                    body.append(layers.MaxPooling2D(2))
                body.append(
                    layers.BatchNormalization(momentum=0.9, epsilon=1e-5, scale=False, name=f"group{group}_norm{half}")
                )
                body.append(layers.Activation(activation))
        head = [
            layers.GlobalMaxPooling2D(),
            layers.Dense(examples.outputs, use_bias=False, name="logits"),
            layers.Rescaling(1 / 9, dtype="float32", name="scores"),
        ]
        return keras.Sequential(pixels(image, any_size=True) + body + head, name="airbench")

    def initialise(self, model: keras.Model, spec: ExampleSpec, examples: Mapping[str, np.ndarray] | None) -> None:
        """Set partial identities, and the whitening convolution from the images."""
        _make_partial_identity(model)
        if examples is not None:
            (images,) = examples.values()
            _whiten(model, spec.image(self.name), images)


def _make_partial_identity(model: keras.Model) -> None:
    """Make the first `in` filters of each 3x3 convolution pass their input through (Dirac; Jordan 2024, 3.3)."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D) and layer.kernel_size == (3, 3):
            kernel = np.array(layer.kernel)
            passed = min(kernel.shape[2:])
            kernel[..., :passed] = 0
            kernel[1, 1, range(passed), range(passed)] = 1
            layer.kernel.assign(kernel)


def _whiten(model: keras.Model, image: ArrayField, images: np.ndarray) -> None:
    """Set the 2x2 convolution to the eigenvectors of the patches' covariance and their negatives (Jordan 2024, 3.2).

    Args:
      images: uint8 [N, *image.shape].
    """
    kernel = model.get_layer("whiten").kernel
    size = 4 * image.shape[-1]
    of_image = image.shape[0] * image.shape[1]
    images = images[: max(1, PATCHES // of_image)]
    at_once = max(1, PATCHES_AT_ONCE // of_image)
    mean, std = (np.array(values, np.float32) for values in mean_and_std(image))
    count, total, products = 0, np.zeros(size), np.zeros((size, size))
    for first in range(0, len(images), at_once):
        part = (images[first : first + at_once] - mean) / std
        patches = np.lib.stride_tricks.sliding_window_view(part, (2, 2), axis=(1, 2))
        # From [N, h - 1, w - 1, channels, 2, 2].
        flat = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, size)
        count, total, products = count + len(flat), total + flat.sum(axis=0), products + flat.T @ flat
    covariance = products / count - np.outer(total, total) / count**2
    values, vectors = np.linalg.eigh(covariance)
    filters = vectors / np.sqrt(values + 5e-4)
    kernel.assign(np.concatenate([filters, -filters], axis=1).reshape(kernel.shape).astype(np.float32))


# Two 5x5 convolutions of 64 filters, each pooled 3/2, and a dense layer of 512.


class CifarTfCnn(ImageNetwork):
    name = "cifar_tf_cnn"
    Settings = ActivationSettings
    worker_mb = 260
    recipe = {
        "training": {"epochs": 12.0, "label_smoothing": 0.1},
        "optimizer": {
            "rule": "adam", "learning_rate": 0.0005, "momentum": 0.9, "weight_decay": 0.0, "learning_rate_factors": [],
        },
        "modes": [  # docs/results.md, "Rates by mode"
            {
                "mode": "async", "workers": 3, "batch_size_per_worker": 128,
                "learning_rate": 0.001, "momentum": 0.9, "beta_2": 0.9, "global_clip_norm": 0.5,
            },
            {"mode": "sync", "workers": 3, "batch_size_per_worker": 128, "learning_rate": 0.002, "momentum": 0.9},
            {"mode": "sync-ps", "workers": 3, "batch_size_per_worker": 128, "learning_rate": 0.002, "momentum": 0.9},
            {"mode": "single", "workers": 1, "batch_size_per_worker": 128, "learning_rate": 0.002, "momentum": 0.9},
        ],
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: ActivationSettings) -> keras.Model:
        """Return the network: 2.2 M parameters for CIFAR-10."""
        activation = settings.activation
        layers = keras.layers
        return keras.Sequential(
            pixels(examples.image(self.name))
            + [
                layers.Conv2D(64, 5, padding="same"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Activation(activation),
                layers.Conv2D(64, 5, padding="same"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Activation(activation),
                layers.Flatten(),
                layers.Dense(512, activation=activation),
            ]
            + scores(examples.outputs),
            name="cifar_tf_cnn",
        )


# A decoder for text: GPT-2's blocks (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section
# 2.3: normalisation before each part, and one at the end) on bytes.


class ByteLmSettings(NetworkSettings):
    blocks: int = Field(default=4, ge=1, le=100, description="Blocks of attention and dense layers.")
    units: int = Field(default=160, ge=1, le=8192, description="Numbers for each place, in each block.")
    heads: int = Field(default=5, ge=1, le=128, description="Heads of attention; they divide the units.")
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Share of a block's results that is left out of a step."
    )


class ByteLm(Network):
    name = "byte_lm"
    Settings = ByteLmSettings
    recipe = {
        "training": {"epochs": 1.0, "label_smoothing": 0.0, "batch_size_per_worker": 16},
        "optimizer": {
            "rule": "adam", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.0, "learning_rate_factors": [],
        },
    }  # fmt: skip

    def check(self, examples: ExampleSpec, settings: ByteLmSettings) -> None:
        examples.window(self.name)
        if settings.units % settings.heads:
            raise ValueError(f"model.heads: got {settings.heads}: they have to divide model.units, {settings.units}")

    def build(self, examples: ExampleSpec, settings: ByteLmSettings) -> keras.Model:
        """Return the network: 1.4 M parameters by default. At each place it looks at that place and those before it."""
        layers, window, units = keras.layers, examples.window(self.name), settings.units
        (name,) = examples.inputs
        given = keras.Input((window,), name=name, dtype="uint8")
        x = layers.Embedding(BYTES, units, name="bytes")(given)
        # A dense layer with a bias for each place: Keras has no layer that only adds an embedding of the places.
        x = layers.EinsumDense(
            "bld,de->ble", (window, units), bias_axes="le", bias_initializer="random_normal", name="places"
        )(x)
        for block in range(settings.blocks):
            x = _block(x, settings, f"block{block}")
        x = layers.LayerNormalization(name="norm")(x)
        x = layers.Dense(BYTES, name="logits")(x)
        return keras.Model(
            given, layers.Reshape((examples.outputs,), dtype="float32", name="scores")(x), name=self.name
        )


def _block(x: keras.KerasTensor, settings: ByteLmSettings, name: str) -> keras.KerasTensor:
    """Return x after attention to the places before, and after two dense layers; both are added to what they were given."""
    layers, units = keras.layers, settings.units
    y = layers.LayerNormalization(name=f"{name}_norm1")(x)
    y = layers.MultiHeadAttention(settings.heads, units // settings.heads, name=f"{name}_attention")(
        y, y, use_causal_mask=True
    )
    x = layers.Add(name=f"{name}_add1")([x, _dropped(y, settings, f"{name}_dropout1")])
    y = layers.LayerNormalization(name=f"{name}_norm2")(x)
    y = layers.Dense(4 * units, "gelu", name=f"{name}_wide")(y)
    y = layers.Dense(units, name=f"{name}_narrow")(y)
    return layers.Add(name=f"{name}_add2")([x, _dropped(y, settings, f"{name}_dropout2")])


def _dropped(x: keras.KerasTensor, settings: ByteLmSettings, name: str) -> keras.KerasTensor:
    return keras.layers.Dropout(settings.dropout, name=name)(x) if settings.dropout else x


# Dense layers for inputs of any form: columns of a table, rows of numbers, small images.


class MlpSettings(ActivationSettings):
    hidden: tuple[int, ...] = Field(
        default=(128, 64), strict=False, min_length=1, max_length=20, description="Units of each dense layer."
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Share of the units that are left out of a step.")


class Mlp(Network):
    name = "mlp"
    Settings = MlpSettings
    recipe = {
        "training": {"epochs": 20.0, "label_smoothing": 0.0},
        "optimizer": {
            "rule": "adam", "learning_rate": 0.001, "momentum": 0.5, "weight_decay": 0.0, "learning_rate_factors": [],
        },
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: MlpSettings) -> keras.Model:
        """Return the network: inputs made flat and standardised, categories embedded, then dense layers."""
        inputs = {
            name: keras.Input(field.shape, name=name, dtype="int32" if field.codes else "float32")
            for name, field in examples.inputs.items()
        }
        parts = [part for name, field in examples.inputs.items() for part in _flat(inputs[name], name, field)]
        x = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
        for place, units in enumerate(settings.hidden):
            x = keras.layers.Dense(units, settings.activation, name=f"dense_{place}")(x)
            if settings.dropout:
                x = keras.layers.Dropout(settings.dropout)(x)
        for layer in scores(examples.outputs):
            x = layer(x)
        single = len(inputs) == 1
        return keras.Model(next(iter(inputs.values())) if single else inputs, x, name=self.name)


def _flat(given: keras.KerasTensor, name: str, field: ArrayField) -> Sequence[keras.KerasTensor]:
    """Return an input as float32 [B, n] each: standardised numbers, or an embedding for each place of codes."""
    layers = keras.layers
    width = math.prod(field.shape)
    if field.codes:
        return [
            # As long as the square root, as is usual, within bounds.
            layers.Embedding(count, min(32, max(2, round(math.sqrt(count)))), name=f"{name}_{place}")(given[:, place])
            for place, count in enumerate(field.codes)
        ]
    flat = layers.Reshape((width,), name=f"{name}_flat")(given)
    if not field.mean and field.dtype != "uint8":  # of an unknown scale
        return [layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(flat)]
    scale, offset = scale_and_offset(field)
    times = width // len(scale)
    return [layers.Rescaling(scale * times, offset * times, dtype="float32", name=f"{name}_norm")(flat)]


# A ResNet-14 for CIFAR (He et al. 2015, arXiv:1512.03385, section 4.2, n = 2; 1x1 projections).


class ResnetSmall(ImageNetwork):
    name = "resnet_small"
    Settings = ActivationSettings
    worker_mb = 280
    recipe = {
        "training": {"epochs": 8.0, "label_smoothing": 0.0},
        "optimizer": {"learning_rate": 0.05, "momentum": 0.8, "weight_decay": 0.002, "learning_rate_factors": []},
        "modes": [  # docs/results.md, "Rates by mode"
            {"mode": "sync", "workers": 3, "batch_size_per_worker": 128, "learning_rate": 0.4, "momentum": 0.8},
            {"mode": "sync-ps", "workers": 3, "batch_size_per_worker": 128, "learning_rate": 0.4, "momentum": 0.8},
            {"mode": "single", "workers": 1, "batch_size_per_worker": 128, "learning_rate": 0.4, "momentum": 0.8},
        ],
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: ActivationSettings) -> keras.Model:
        """Return the network: 0.18 M parameters for CIFAR-10."""
        activation = settings.activation
        layers = keras.layers
        given, normalise = pixels(examples.image(self.name), any_size=True)
        x = normalise(given)
        x = layers.Conv2D(16, 3, padding="same", use_bias=False, name="stem_conv")(x)
        x = layers.BatchNormalization(momentum=0.9, name="stem_norm")(x)
        x = layers.Activation(activation, name="stem_activation")(x)
        for group, filters in enumerate((16, 32, 64)):
            for block in range(2):
                stride = 2 if group and not block else 1
                x = _residual(x, filters, stride, activation, f"group{group}_block{block}")
        x = layers.GlobalAveragePooling2D()(x)
        for layer in scores(examples.outputs):
            x = layer(x)
        return keras.Model(given, x, name="resnet_small")


def _residual(x: keras.KerasTensor, filters: int, stride: int, activation: str, name: str) -> keras.KerasTensor:
    layers = keras.layers
    y = layers.Conv2D(filters, 3, stride, "same", use_bias=False, name=f"{name}_conv1")(x)
    y = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm1")(y)
    y = layers.Activation(activation, name=f"{name}_activation1")(y)
    y = layers.Conv2D(filters, 3, 1, "same", use_bias=False, name=f"{name}_conv2")(y)
    y = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm2")(y)
    if stride != 1 or x.shape[-1] != filters:
        x = layers.Conv2D(filters, 1, stride, use_bias=False, name=f"{name}_shortcut")(x)
    return layers.Activation(activation, name=f"{name}_activation2")(layers.Add(name=f"{name}_add")([x, y]))


# The CNN of TensorFlow's tutorial, with the tutorial's optimizer (adam at its default rate), and light augmentation.
#
# https://www.tensorflow.org/tutorials/images/cnn


class TutorialCnn(ImageNetwork):
    name = "tutorial_cnn"
    smallest_side = 18
    Settings = ActivationSettings
    worker_mb = 150
    recipe = {
        "data": {"augmentation": {"flip": "random"}},
        "training": {"epochs": 15.0, "label_smoothing": 0.0},
        "optimizer": {
            "rule": "adam", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.0, "learning_rate_factors": [],
        },
        "modes": [
            {
                "mode": "async", "workers": 3, "batch_size_per_worker": 128,
                "learning_rate": 0.003, "momentum": 0.9, "beta_2": 0.9, "global_clip_norm": 0.5,
            },
            {
                "mode": "async", "workers": 3, "batch_size_per_worker": 384,
                "learning_rate": 0.002, "momentum": 0.9, "beta_2": 0.9, "global_clip_norm": 0.5,
            },
            {"mode": "bounded", "workers": 3, "batch_size_per_worker": 128, "learning_rate": 0.001, "momentum": 0.5},
            {"mode": "bounded", "workers": 3, "batch_size_per_worker": 384, "learning_rate": 0.001, "momentum": 0.5},
            {
                "mode": "sync", "workers": 3, "batch_size_per_worker": 128,
                "learning_rate": 0.008, "momentum": 0.9, "beta_2": 0.9, "global_clip_norm": 0.5,
            },
            {
                "mode": "sync-ps", "workers": 3, "batch_size_per_worker": 128,
                "learning_rate": 0.008, "momentum": 0.9, "beta_2": 0.9, "global_clip_norm": 0.5,
            },
            {"mode": "single", "workers": 1, "batch_size_per_worker": 128, "learning_rate": 0.004, "momentum": 0.5},
            {"mode": "single", "workers": 1, "batch_size_per_worker": 384, "learning_rate": 0.008, "momentum": 0.9},
        ],
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: ActivationSettings) -> keras.Model:
        """Return the network: 0.12 M parameters for CIFAR-10."""
        activation = settings.activation
        layers = keras.layers
        return keras.Sequential(
            pixels(examples.image(self.name))
            + [
                layers.Conv2D(32, 3),
                layers.MaxPooling2D(),
                layers.Activation(activation),
                layers.Conv2D(64, 3),
                layers.MaxPooling2D(),
                layers.Activation(activation),
                layers.Conv2D(64, 3, activation=activation),
                layers.Flatten(),
                layers.Dense(64, activation=activation),
            ]
            + scores(examples.outputs),
            name="tutorial_cnn",
        )
