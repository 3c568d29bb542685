"""The base class of networks. The package's own are in ps_cluster/models/networks/, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.lazily import keras
from ps_cluster.catalogue.settings import Section


class NetworkSettings(Section):
    """The section `model` of a configuration. A network adds settings of its own in a subclass, with defaults."""

    name: Annotated[str, AfterValidator(lambda name: NETWORKS.check_name(name))]
    precision: Literal["auto", "bfloat16", "float32"]


class ActivationSettings(NetworkSettings):
    """The settings of a network whose activation can be chosen."""

    activation: Literal["relu", "gelu", "silu"] = Field(default="relu")


class Network:
    """A network. Subclass it, or bring a function `build(examples, settings)` that returns a Keras model.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `model`, with this network's own settings.
      worker_mb: measured memory in MB of a worker's process with a batch of 128 (cluster/memory.py); None if unknown.
      recipe: a layer of settings in which it differs from configs/default.yaml. Under `modes` it can have a learning
        rate and a momentum for a mode, number of workers and batch (config/recipes.py), which `python -m
        benchmarks.rates` finds.
    """

    page = "docs/own-network.md"
    name = ""
    Settings: type[NetworkSettings] = NetworkSettings
    worker_mb: float | None = None
    recipe: Mapping[str, Any] = {}

    def build(self, examples: ExampleSpec, settings: Any) -> keras.Model:
        """Return a Keras model that takes raw `examples` and returns `examples.outputs` numbers for each.

        A plain Keras model: one that is saved loads without this code. Raise ValueError where the examples don't fit.
        """
        raise NotImplementedError

    def initialise(self, model: keras.Model, spec: ExampleSpec, examples: Mapping[str, np.ndarray] | None) -> None:
        """Change Keras's initial weights, which `build` has left.

        Args:
          spec: what `build` was given.
          examples: name of a field → its first training examples [N, …]; None if the weights are loaded next.
        """


def _from_function(found: Any) -> Any:
    """Return a network for a function that builds a model; return anything else as it is."""
    if isinstance(found, type) or not callable(found):
        return found
    network = Network()
    network.build = found  # type: ignore[method-assign]
    return network


NETWORKS: Kinds[Network] = Kinds(
    "network", Network, "ps_cluster.models.networks", "ps_cluster.networks", wrap=_from_function
)
