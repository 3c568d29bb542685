"""A ResNet-14 for CIFAR (He et al. 2015, arXiv:1512.03385, section 4.2, n = 2; 1x1 projections).

Its update rule is Muon, which was better than Nesterov's momentum on held-out images, and far better with stale
gradients. The modes that divide the network among the workers can't use Muon, so they use Nesterov's momentum.
"""

from __future__ import annotations

from ps_cluster.config.lazy import keras
from ps_cluster.config.networks import ActivationSettings
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.models.networks import MUON, ImageNetwork, pixels, scored, tuned_settings


class ResnetSmall(ImageNetwork[ActivationSettings]):
    name = "resnet_small"
    Settings = ActivationSettings
    worker_mb = 280
    recipe = {
        "training": {"epochs": 8.0, "label_smoothing": 0.0},
        "optimizer": {**MUON, "learning_rate": 0.02},
        "divided": {
            "optimizer": {"rule": "nesterov", "learning_rate": 0.4, "momentum": 0.8, "weight_decay": 0.002},
        },
        "modes": [  # docs/results.md, "Rates by mode"
            *tuned_settings("async", "bounded", learning_rate=0.02, momentum=0.9),
            *tuned_settings("sync", "sync-ps", learning_rate=0.08, momentum=0.9),
            *tuned_settings("single", workers=1, learning_rate=0.04, momentum=0.9),
            *tuned_settings("single", workers=1, batch=384, learning_rate=0.08, momentum=0.9),
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
        return keras.Model(given, scored(x, examples.outputs), name="resnet_small")


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
