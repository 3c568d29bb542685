"""Build the network that a configuration chooses, with its initial weights."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.catalogue.imports import find
from ps_cluster.catalogue.networks import NETWORKS, NetworkSettings

EXAMPLES = 2000  # most examples that initial weights are computed from
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def build(
    settings: NetworkSettings, spec: ExampleSpec, *, seed: int, examples: Mapping[str, np.ndarray] | None = None
) -> keras.Model:
    """Return a network with its initial weights, which depend only on `seed` and the examples.

    Args:
      settings: precision "float32", or "bfloat16" to compute in bfloat16; variables stay float32.
      spec: the form of the examples, and the number of outputs.
      examples: name → raw training examples [N, ...], of which the first `EXAMPLES` may be used; None if the weights are
        loaded next.
    """
    network = NETWORKS[settings.name]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[settings.precision])
    try:
        keras.utils.set_random_seed(seed)
        model = find(network.build)(spec, settings)
    finally:
        keras.config.set_dtype_policy(before)
    if network.initialise is not None:
        find(network.initialise)(model, spec, examples)
    return model
