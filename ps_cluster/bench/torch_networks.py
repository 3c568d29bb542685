"""The networks of `ps_cluster/models/networks/` in PyTorch: same layers, shapes, padding and trainable parameters.

Each takes normalised images `[B, 3, 32, 32]` and returns a score per class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

Activation = Callable[[], nn.Module]
ACTIVATIONS: dict[str, Activation] = {
    "relu": partial(nn.ReLU, inplace=True),
    "gelu": nn.GELU,
    "silu": partial(nn.SiLU, inplace=True),
}


def tutorial_cnn(classes: int, activation: Activation) -> nn.Module:
    """Return the network of `ps_cluster/models/networks/tutorial_cnn.py`."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), activation(),
        nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), activation(),
        nn.Conv2d(64, 64, 3), activation(), nn.Flatten(),
        nn.Linear(1024, 64), activation(), nn.Linear(64, classes),
    )  # fmt: skip


def cifar_tf_cnn(classes: int, activation: Activation) -> nn.Module:
    """Return the network of `ps_cluster/models/networks/cifar_tf_cnn.py`."""
    pool = partial(nn.MaxPool2d, 3, 2, ceil_mode=True)  # pads only below and right, as "same" does in TensorFlow
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding="same"), pool(), activation(),
        nn.Conv2d(64, 64, 5, padding="same"), pool(), activation(), nn.Flatten(),
        nn.Linear(4096, 512), activation(), nn.Linear(512, classes),
    )  # fmt: skip


class _Residual(nn.Module):
    def __init__(self, inputs: int, filters: int, stride: int, activation: Activation):
        super().__init__()
        # "same" with stride 2 pads only below and right; padding on all sides saves a copy and computes as much.
        self._body = nn.Sequential(
            nn.Conv2d(inputs, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters), activation(),
            nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters),
        )  # fmt: skip
        same = stride == 1 and inputs == filters
        self._activation = activation()
        self._shortcut = nn.Identity() if same else nn.Conv2d(inputs, filters, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._activation(self._body(x) + self._shortcut(x))


def resnet_small(classes: int, activation: Activation) -> nn.Module:
    """Return the network of `ps_cluster/models/networks/resnet_small.py`."""
    layers = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), activation()]
    inputs = 16
    for filters in (16, 32, 64):
        layers += [_Residual(inputs, filters, 1 if inputs == filters else 2, activation)]
        layers += [_Residual(filters, filters, 1, activation)]
        inputs = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class _Airbench(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).float() / 9


def _shift(width: int) -> nn.Module:
    """Return a normalisation whose scale stays 1."""
    norm = nn.BatchNorm2d(width, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm


def airbench(classes: int, activation: Activation) -> nn.Module:
    """Return the network of `ps_cluster/models/networks/airbench.py`."""
    layers, inputs = [nn.Conv2d(3, 24, 2), activation()], 24
    for width in (64, 256, 256):
        layers += [
            nn.Conv2d(inputs, width, 3, padding="same", bias=False),
            nn.MaxPool2d(2),
            _shift(width),
            activation(),
        ]
        layers += [nn.Conv2d(width, width, 3, padding="same", bias=False), _shift(width), activation()]
        inputs = width
    return _Airbench(*layers, nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, classes, bias=False))


BUILDERS = {
    "tutorial_cnn": tutorial_cnn,
    "cifar_tf_cnn": cifar_tf_cnn,
    "resnet_small": resnet_small,
    "airbench": airbench,
}
# Trainable parameters of the Keras networks for ten classes (tests/models/test_networks.py).
PARAMETERS = {"tutorial_cnn": 122_570, "cifar_tf_cnn": 2_210_122, "resnet_small": 175_066, "airbench": 1_971_640}


def build(name: str, activation: str) -> nn.Module:
    """Return a network for ten classes in channels_last, which oneDNN's kernels take without a copy.

    Raises:
      RuntimeError: its number of trainable parameters differs from the Keras network's.
    """
    network = BUILDERS[name](10, ACTIVATIONS[activation]).to(memory_format=torch.channels_last)
    if trainable(network) != PARAMETERS[name]:
        raise RuntimeError(f"{name} has {trainable(network):,} parameters here and {PARAMETERS[name]:,} in Keras")
    return network


def trainable(network: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
