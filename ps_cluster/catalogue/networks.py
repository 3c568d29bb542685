"""The networks: the functions that build and initialise each. Recipes are in configs/models/<name>.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.settings import Section


class NetworkSettings(Section):
    """The section `model` of a configuration. A network adds settings of its own in a subclass, with defaults."""

    name: Annotated[str, AfterValidator(lambda name: NETWORKS.check_name(name))]
    precision: Literal["auto", "bfloat16", "float32"]


class Network:
    """A network. Subclass it, or bring a function `build(outputs, settings)` that returns a Keras model.

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `model`, with this network's own settings.
      build: "module:function" of `build(outputs, settings)`, which returns a Keras model that takes raw examples;
        `outputs` is the number of outputs for each example.
      initialise: "module:function" of `initialise(model, examples)`, called after `build` with uint8 [N, …] training
        examples, or with None if the weights are loaded next; None: Keras's initial weights stay.
      worker_mb: measured memory in MB of a worker's process with a batch of 128 (cluster/memory.py); None if unknown.
      recipe: a layer of settings in which it differs from configs/default.yaml.
    """

    name = ""
    Settings: type[NetworkSettings] = NetworkSettings
    build: Any = None
    initialise: Any = None
    worker_mb: float | None = None
    recipe: Mapping[str, Any] = {}


class ActivationSettings(NetworkSettings):
    activation: Literal["relu", "gelu", "silu"] = Field(default="relu")


class TutorialCnn(Network):
    name = "tutorial_cnn"
    Settings = ActivationSettings
    build = "ps_cluster.models.networks:tutorial_cnn"
    worker_mb = 150


class CifarTfCnn(Network):
    name = "cifar_tf_cnn"
    Settings = ActivationSettings
    build = "ps_cluster.models.networks:cifar_tf_cnn"
    worker_mb = 260


class ResnetSmall(Network):
    name = "resnet_small"
    Settings = ActivationSettings
    build = "ps_cluster.models.networks:resnet_small"
    worker_mb = 280


class AirbenchSettings(NetworkSettings):
    activation: Literal["relu", "gelu", "silu"] = Field(default="gelu")


class Airbench(Network):
    name = "airbench"
    Settings = AirbenchSettings
    build = "ps_cluster.models.networks:airbench"
    initialise = "ps_cluster.models.networks:initialise_airbench"
    worker_mb = 400


TUTORIAL_CNN = TutorialCnn()
CIFAR_TF_CNN = CifarTfCnn()
RESNET_SMALL = ResnetSmall()
AIRBENCH = Airbench()


def _from_function(found: Any) -> Any:
    """Return a network for a function that builds a model; return anything else as it is."""
    if isinstance(found, type) or not callable(found):
        return found
    network = Network()
    network.build = found
    return network


NETWORKS: Kinds[Network] = Kinds(
    "network", Network, "ps_cluster.catalogue.networks", "ps_cluster.networks", wrap=_from_function
)
