"""The networks: what builds and initialises each, and its recipe in configs/models/<name>.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.catalogue.settings import Section


class NetworkSettings(Section):
    """The section `model` of a configuration. A network with settings of its own adds them in a subclass, with defaults."""

    name: Annotated[str, AfterValidator(lambda name: NETWORKS.check_name(name))]
    precision: Literal["auto", "bfloat16", "float32"]


class Network:
    """A network. Subclass it, or bring a function `build(outputs, settings)` that returns a Keras model.

    Attributes:
      name: by which it is chosen.
      Settings: the section `model`, with the settings of its own.
      build: "module:function" of `build(outputs, settings)`, which returns a Keras model of raw examples; `outputs` is how
        many numbers it gives for an example.
      initialise: "module:function" of `initialise(model, examples)`, called behind `build` with uint8 [N, …] training
        examples, or None where the weights are loaded next; None: Keras's initial weights stay.
      worker_mb: memory of a worker's process with a batch of 128, measured (cluster/memory.py); None where it is not known.
      recipe: a layer of settings that it needs otherwise than configs/default.yaml has them.
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
    """Return a network of a function that builds a model."""
    if isinstance(found, type) or not callable(found):
        return found
    network = Network()
    network.build = found
    return network


NETWORKS: Kinds[Network] = Kinds(
    "network", Network, "ps_cluster.catalogue.networks", "ps_cluster.networks", wrap=_from_function
)
