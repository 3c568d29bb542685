"""The CNN of TensorFlow's tutorial, with light augmentation.

Its update rule is Muon, which was far better than the tutorial's Adam on held-out images, with stale gradients and
without. The modes that divide the network among the workers can't use Muon, so they use Adam.

https://www.tensorflow.org/tutorials/images/cnn
"""

from __future__ import annotations

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import ActivationSettings, UsualScore
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.models.networks import ADAM, MUON, ImageNetwork, pixels, scores, tuned_settings


class TutorialCnn(ImageNetwork[ActivationSettings]):
    name = "tutorial_cnn"
    smallest_side = 18
    Settings = ActivationSettings
    worker_mb = 150
    usual_scores = {"cifar10": UsualScore(0.747, examples=150_000, runs=5)}
    recipe = {
        "data": {"augmentation": {"flip": "random"}},
        "training": {"epochs": 15.0, "label_smoothing": 0.0},
        "optimizer": {**MUON, "learning_rate": 0.02},
        "divided": {"optimizer": {**ADAM, "learning_rate": 0.004, "momentum": 0.5}},
        "modes": [  # docs/results.md, "What staleness costs" and "Rates by mode"
            *tuned_settings("async", "bounded", learning_rate=0.02, momentum=0.9),
            *tuned_settings("async", "bounded", batch=384, learning_rate=0.02, momentum=0.9),
            *tuned_settings("sync", "sync-ps", learning_rate=0.04, momentum=0.9),
            *tuned_settings("single", workers=1, learning_rate=0.02, momentum=0.9),
            *tuned_settings("single", workers=1, batch=384, learning_rate=0.04, momentum=0.9),
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
