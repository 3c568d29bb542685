"""The CNN of TensorFlow's tutorial, with the tutorial's optimizer (adam at its default rate), and light augmentation.

https://www.tensorflow.org/tutorials/images/cnn
"""

from __future__ import annotations

from typing import Any

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import ActivationSettings, UsualScore
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.models.networks import ADAM, ImageNetwork, found, pixels, scores

_CLIPPED: dict[str, Any] = {"momentum": 0.9, "beta_2": 0.9, "global_clip_norm": 0.5}


class TutorialCnn(ImageNetwork[ActivationSettings]):
    name = "tutorial_cnn"
    smallest_side = 18
    Settings = ActivationSettings
    worker_mb = 150
    usual_scores = {"cifar10": UsualScore(0.69, examples=150_000, runs=8)}
    recipe = {
        "data": {"augmentation": {"flip": "random"}},
        "training": {"epochs": 15.0, "label_smoothing": 0.0},
        "optimizer": {**ADAM, "learning_rate": 0.001},
        "modes": [
            *found("async", learning_rate=0.003, **_CLIPPED),
            *found("async", batch=384, learning_rate=0.002, **_CLIPPED),
            *found("bounded", learning_rate=0.001, momentum=0.5),
            *found("bounded", batch=384, learning_rate=0.001, momentum=0.5),
            *found("sync", "sync-ps", learning_rate=0.008, **_CLIPPED),
            *found("single", workers=1, learning_rate=0.004, momentum=0.5),
            *found("single", workers=1, batch=384, learning_rate=0.008, momentum=0.9),
        ],
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: ActivationSettings) -> keras.Model:
        """Return the network: 0.12 M parameters for CIFAR-10."""
        activation = settings.activation
        layers = keras.layers
        return keras.Sequential(
            [
                *pixels(examples.image(self.name)),
                layers.Conv2D(32, 3),
                layers.MaxPooling2D(),
                layers.Activation(activation),
                layers.Conv2D(64, 3),
                layers.MaxPooling2D(),
                layers.Activation(activation),
                layers.Conv2D(64, 3, activation=activation),
                layers.Flatten(),
                layers.Dense(64, activation=activation),
                *scores(examples.outputs),
            ],
            name="tutorial_cnn",
        )
