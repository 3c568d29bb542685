"""Two 5x5 convolutions of 64 filters, each with 3x3 max pooling at stride 2, and a dense layer of 512 units.

Its update rule is Muon, which was far better than Adam on held-out images, with stale gradients and without. The modes
that divide the network among the workers can't use Muon, so they use Adam.
"""

from __future__ import annotations

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import ActivationSettings
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.models.networks import ADAM, MUON, ImageNetwork, pixels, scores, tuned_settings


class CifarTfCnn(ImageNetwork[ActivationSettings]):
    name = "cifar_tf_cnn"
    Settings = ActivationSettings
    worker_mb = 260
    recipe = {
        "training": {"epochs": 12.0, "label_smoothing": 0.1},
        "optimizer": {**MUON, "learning_rate": 0.02},
        "divided": {"optimizer": {**ADAM, "learning_rate": 0.002}},
        "modes": [  # docs/results.md, "Rates by mode"
            *tuned_settings("async", "bounded", learning_rate=0.02, momentum=0.9),
            *tuned_settings("sync", "sync-ps", learning_rate=0.04, momentum=0.9),
            *tuned_settings("single", workers=1, learning_rate=0.02, momentum=0.9),
            *tuned_settings("single", workers=1, batch=384, learning_rate=0.04, momentum=0.9),
        ],
    }  # fmt: skip

    def build(self, examples: ExampleSpec, settings: ActivationSettings) -> keras.Model:
        """Return the network: 2.2 M parameters for CIFAR-10."""
        activation = settings.activation
        layers = keras.layers
        return keras.Sequential(
            [
                *pixels(examples.image(self.name)),
                layers.Conv2D(64, 5, padding="same"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Activation(activation),
                layers.Conv2D(64, 5, padding="same"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Activation(activation),
                layers.Flatten(),
                layers.Dense(512, activation=activation),
                *scores(examples.outputs),
            ],
            name="cifar_tf_cnn",
        )
