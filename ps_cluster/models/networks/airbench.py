"""The network of airbench (Jordan 2024, arXiv:2404.00498, section 3), the default network.

Its convolutions are updated by Muon, as in airbench94_muon (github.com/KellerJordan/cifar10-airbench). In the first
half of the training, the images are scaled down. The modes that divide the network among the workers can't use Muon, so
they use Nesterov's momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import ActivationSettings, UsualScore
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.models.networks import ImageNetwork, mean_and_std, pixels, tuned_settings

PATCHES = 2_100_000  # the largest number of patches from which the whitening is computed
PATCHES_AT_ONCE = 100_000  # patches per conversion to float32; converting all at once is slower, and takes 200 MB more


class AirbenchSettings(ActivationSettings):
    activation: Literal["relu", "gelu", "silu"] = Field(
        default="gelu", description="Activation function after each normalisation."
    )
    width: float = Field(
        default=1.0,
        ge=0.0625,
        le=16,
        description="The three groups have 64, 256 and 256 filters. This factor multiplies these numbers.",
    )


class Airbench(ImageNetwork[AirbenchSettings]):
    name = "airbench"
    smallest_side = 9
    Settings = AirbenchSettings
    worker_mb = 480
    usual_scores = {"cifar10": UsualScore(0.92, examples=235_000, runs=3, minutes_in_float32=30)}
    recipe = {
        "training": {"epochs": 4.7, "batch_size_per_worker": 256},
        "schedule": {"image_scales": [{"scale": 0.75, "until": 0.5}]},
        # The factors of learning rates are those of configs/default.yaml.
        "optimizer": {
            "rule": "muon", "learning_rate": 0.15, "rate_of_nesterov": 3.33, "momentum": 0.6, "weight_decay": 0.011,
            "matrices": ["conv"],
        },
        "divided": {
            "training": {"epochs": 7.0, "batch_size_per_worker": 128},
            "optimizer": {"rule": "nesterov", "learning_rate": 1.0, "momentum": 0.6, "weight_decay": 0.0033},
        },
        "modes": [  # docs/results.md, "Rates by mode"
            *tuned_settings("async", batch=256, learning_rate=0.15, momentum=0.6),
            *tuned_settings("sync", "sync-ps", batch=256, learning_rate=0.6, momentum=0.6),
            *tuned_settings("single", workers=1, batch=256, learning_rate=0.3, momentum=0.6),
        ],
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: AirbenchSettings) -> keras.Model:
        """Return the network: about 2.0 M parameters for CIFAR-10.

        The layers are a 2x2 whitening convolution; three groups of convolution, pooling, normalisation, activation,
        convolution, normalisation and activation; global max pooling; and a dense layer without bias, whose outputs are
        divided by 9. The momentum of the moving statistics is larger than in the paper (0.6 for a batch of 1,024),
        because a worker's batch is smaller.
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
        """Set the 3x3 convolutions to partial identities, and compute the whitening convolution from the images."""
        _make_partial_identity(model)
        if examples is not None:
            (images,) = examples.values()
            _whiten(model, spec.image(self.name), images)


def _make_partial_identity(model: keras.Model) -> None:
    """Make the first filters of each 3x3 convolution copy one input channel each (Dirac; Jordan 2024, 3.3)."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D) and layer.kernel_size == (3, 3):
            kernel = layer.kernel.numpy()
            passed = min(kernel.shape[2:])
            kernel[..., :passed] = 0
            kernel[1, 1, range(passed), range(passed)] = 1
            layer.kernel.assign(kernel)


def _whiten(model: keras.Model, image: ArrayField, images: np.ndarray) -> None:
    """Set the 2x2 convolution to the eigenvectors of the patches' covariance and their negatives (Jordan 2024, 3.2).

    `images`: uint8 [N, *image.shape].
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
        # The patches have shape [N, h - 1, w - 1, channels, 2, 2].
        flat = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, size)
        count, total, products = count + len(flat), total + flat.sum(axis=0), products + flat.T @ flat
    covariance = products / count - np.outer(total, total) / count**2
    values, vectors = np.linalg.eigh(covariance)
    filters = vectors / np.sqrt(values + 5e-4)
    kernel.assign(np.concatenate([filters, -filters], axis=1).reshape(kernel.shape).astype(np.float32))
