"""The networks, by name. Each is a plain Keras model of raw pixels, so a saved one loads without this code.

Pooling comes before the activation: ReLU of the maximum is the maximum of ReLU, for a quarter of the values.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from ps_cluster.catalogue.examples import ExampleSpec, Field


def _pixels(examples: ExampleSpec) -> list:
    """Return the input `[B, H, W, C]`, 0..255, and its float32 normalisation per channel to mean 0 and variance 1."""
    image = examples.image("network")
    row = image.shape[1]  # TensorFlow broadcasts a row of 96 values over an image several times as fast as one of 3
    return [
        keras.Input(image.shape, name="pixels"),
        keras.layers.Rescaling(
            scale=[[1 / std for std in image.std]] * row,
            offset=[[-mean / std for mean, std in zip(image.mean, image.std)]] * row,
            dtype="float32",
            name="normalise",
        ),
    ]


def _logits(classes: int) -> list:
    """Return the dense layer of class scores, always in float32."""
    return [
        keras.layers.Dense(classes, name="logits"),
        keras.layers.Activation("linear", dtype="float32", name="scores"),
    ]


def tutorial_cnn(examples: ExampleSpec, settings: Any) -> keras.Model:
    """Return the CNN of https://www.tensorflow.org/tutorials/images/cnn (CIFAR-10 tutorial): 0.12 M parameters."""
    activation = settings.activation
    layers = keras.layers
    return keras.Sequential(
        _pixels(examples)
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
        + _logits(examples.outputs),
        name="tutorial_cnn",
    )


def cifar_tf_cnn(examples: ExampleSpec, settings: Any) -> keras.Model:
    """Return two 5x5 convolutions of 64 filters, each pooled 3/2, and a dense layer of 512: 2.2 M parameters."""
    activation = settings.activation
    layers = keras.layers
    return keras.Sequential(
        _pixels(examples)
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
        + _logits(examples.outputs),
        name="cifar_tf_cnn",
    )


def _residual(x, filters: int, stride: int, activation: str, name: str):
    layers = keras.layers
    y = layers.Conv2D(filters, 3, stride, "same", use_bias=False, name=f"{name}_conv1")(x)
    y = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm1")(y)
    y = layers.Activation(activation, name=f"{name}_activation1")(y)
    y = layers.Conv2D(filters, 3, 1, "same", use_bias=False, name=f"{name}_conv2")(y)
    y = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm2")(y)
    if stride != 1 or x.shape[-1] != filters:
        x = layers.Conv2D(filters, 1, stride, use_bias=False, name=f"{name}_shortcut")(x)
    return layers.Activation(activation, name=f"{name}_activation2")(layers.Add(name=f"{name}_add")([x, y]))


def resnet_small(examples: ExampleSpec, settings: Any) -> keras.Model:
    """Return a ResNet-14 for CIFAR (He et al. 2015, section 4.2, n = 2; 1x1 projections): 0.18 M parameters."""
    activation = settings.activation
    layers = keras.layers
    pixels, normalise = _pixels(examples)
    x = normalise(pixels)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False, name="stem_conv")(x)
    x = layers.BatchNormalization(momentum=0.9, name="stem_norm")(x)
    x = layers.Activation(activation, name="stem_activation")(x)
    for group, filters in enumerate((16, 32, 64)):
        for block in range(2):
            stride = 2 if group and not block else 1
            x = _residual(x, filters, stride, activation, f"group{group}_block{block}")
    x = layers.GlobalAveragePooling2D()(x)
    for layer in _logits(examples.outputs):
        x = layer(x)
    return keras.Model(pixels, x, name="resnet_small")


def airbench(examples: ExampleSpec, settings: Any) -> keras.Model:
    """Return the network of airbench (Jordan 2024, arXiv:2404.00498, section 3): about 2.0 M parameters.

    A 2x2 whitening convolution; three groups of convolution, pooling, normalisation, activation, convolution,
    normalisation, activation; a 3x3 max pooling; a dense layer without bias whose output is divided by 9. The moving
    statistics forget more slowly than the paper's (0.6 for a batch of 1,024): a worker's batch is a fraction of that.
    """
    activation = settings.activation
    layers = keras.layers
    body = [layers.Conv2D(24, 2, padding="valid", name="whiten"), layers.Activation(activation)]
    for group, width in enumerate((64, 256, 256)):
        for half in range(2):
            body.append(layers.Conv2D(width, 3, padding="same", use_bias=False, name=f"group{group}_conv{half}"))
            if half == 0:
                body.append(layers.MaxPooling2D(2))
            body.append(
                layers.BatchNormalization(momentum=0.9, epsilon=1e-5, scale=False, name=f"group{group}_norm{half}")
            )
            body.append(layers.Activation(activation))
    head = [
        layers.MaxPooling2D(3),
        layers.Flatten(),
        layers.Dense(examples.outputs, use_bias=False, name="logits"),
        layers.Rescaling(1 / 9, dtype="float32", name="scores"),
    ]
    return keras.Sequential(_pixels(examples) + body + head, name="airbench")


def initialise_airbench(model: keras.Model, spec: ExampleSpec, examples: Any) -> None:
    """Set airbench's initial weights: partial identities, and the whitening convolution from uint8 [N, 32, 32, 3]."""
    _make_partial_identity(model)
    if examples is not None:
        (images,) = examples.values()
        _whiten(model, images, spec.image("airbench"))


def _make_partial_identity(model: keras.Model) -> None:
    """Make the first `in` filters of each 3x3 convolution pass their input through (Dirac; Jordan 2024, 3.3)."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D) and layer.kernel_size == (3, 3):
            kernel = np.array(layer.kernel)
            inputs = kernel.shape[2]
            kernel[..., :inputs] = 0
            kernel[1, 1, range(inputs), range(inputs)] = 1
            layer.kernel.assign(kernel)


def _whiten(model: keras.Model, images: np.ndarray, field: Field) -> None:
    """Set the 2x2 convolution to the eigenvectors of the patches' covariance and their negatives (Jordan 2024, 3.2)."""
    layer = model.get_layer("whiten")
    normalised = (images - np.array(field.mean, np.float32)) / np.array(field.std, np.float32)
    patches = np.lib.stride_tricks.sliding_window_view(normalised, (2, 2), axis=(1, 2))  # [N, 31, 31, 3, 2, 2]
    flat = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 12)
    values, vectors = np.linalg.eigh(np.cov(flat, rowvar=False))
    filters = vectors / np.sqrt(values + 5e-4)
    layer.kernel.assign(np.concatenate([filters, -filters], axis=1).reshape(2, 2, 3, 24).astype(np.float32))
