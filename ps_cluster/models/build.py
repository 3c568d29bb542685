"""Build the network that a configuration chooses, with its initial weights."""

from __future__ import annotations

import keras
import numpy as np

from ps_cluster.catalogue.imports import find
from ps_cluster.catalogue.networks import NETWORKS, NetworkSettings

EXAMPLES = 2000  # most examples that initial weights are computed from
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def build(settings: NetworkSettings, outputs: int, *, seed: int, examples: np.ndarray | None = None) -> keras.Model:
    """Return a network with its initial weights, which depend only on `seed` and the examples.

    Args:
      settings: precision "float32", or "bfloat16" to compute in bfloat16; variables stay float32.
      outputs: numbers that the network returns for an example.
      examples: raw training examples [N, ...], of which the first `EXAMPLES` may be used; None if the
        weights are loaded next.
    """
    network = NETWORKS[settings.name]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[settings.precision])
    try:
        keras.utils.set_random_seed(seed)
        model = find(network.build)(outputs, settings)
    finally:
        keras.config.set_dtype_policy(before)
    if network.initialise is not None:
        find(network.initialise)(model, None if examples is None else examples[:EXAMPLES])
    return model
