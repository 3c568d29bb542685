"""Define the base class of networks.

The package's own networks are in ps_cluster/models/networks/.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from ps_cluster.config import user_code
from ps_cluster.config.lazy import keras
from ps_cluster.config.objectives import TEXT, ExampleSpec
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.setting_types import Section
from ps_cluster.errors import UserError


class NetworkSettings(Section):
    """The section `model` of a configuration. A subclass adds the settings of one network, with defaults."""

    name: Annotated[str, AfterValidator(lambda name: NETWORKS.check_name(name))] = Field(description="The network.")
    precision: Literal["auto", "bfloat16", "float32"] = Field(
        description="Dtype of the computation; auto: bfloat16 if the processor has instructions for it."
    )
    rows_from: int = Field(
        default=10_000,
        ge=1,
        le=2**40,
        description="An Embedding layer with at least this many rows becomes a table on the parameter servers: each step "
        "pulls and pushes only the rows of its batch.",
    )


class ActivationSettings(NetworkSettings):
    """The settings of a network whose activation can be chosen."""

    activation: Literal["relu", "gelu", "silu"] = Field(
        default="relu", description="Activation function after each hidden layer."
    )


@dataclass(frozen=True)
class UsualScore:
    """The score that a network usually reaches on a data set with its recipe in mode async."""

    accuracy: float  # the mean test accuracy, from 0 to 1, of `runs` runs (docs/results.md has the command)
    examples: int  # the number of training examples, over all epochs, of each of these runs
    runs: int
    # The approximate time of a run on two cores without bfloat16 instructions, if it is much longer than with them.
    minutes_in_float32: float | None = None


OwnSettings = TypeVar("OwnSettings", bound=NetworkSettings)


class Network(Named, Generic[OwnSettings]):
    """A network. Subclass it, or write a function that returns a Keras model (`FunctionNetwork`).

    Attributes:
      name: the name by which users choose it.
      Settings: the class of the section `model`, with this network's own settings.
      worker_mb: the measured memory in MB of a worker's process with a batch of 128 (launch/memory.py); None if unknown.
      scored_at_once: how many examples the evaluator scores at once. If they are too many, the evaluator needs more
        memory than a training task.
      recipe: the settings of the network that differ from configs/default.yaml. The key `modes` may list learning
        rates and momenta for combinations of mode, number of workers and batch size (`FoundRates`). They were found
        on held-out examples.
      usual_scores: the scores that users may expect, by the name of the data set.
      tuned_on: the number of training examples for which the epochs of the recipe were chosen; None if unknown.
    """

    page = "docs/extending.md#your-own-network"
    Settings: type[NetworkSettings] = NetworkSettings
    worker_mb: float | None = None
    scored_at_once: int = 50
    recipe: Mapping[str, Any] = {}
    usual_scores: Mapping[str, UsualScore] = {}
    tuned_on: int | None = None

    def check(self, examples: ExampleSpec, settings: OwnSettings) -> None:
        """Raise ValueError or UserError if `build` can't use the examples or settings.

        This method is called before a run starts any process, so it must work without TensorFlow.
        """

    def build(self, examples: ExampleSpec, settings: OwnSettings) -> keras.Model:
        """Return a Keras model that takes raw `examples` and returns `examples.outputs` numbers for each example.

        The model has to be a plain Keras model, so that a saved model can be loaded without this code. Raise ValueError
        if the examples don't fit.
        """
        raise NotImplementedError

    def initialise(self, model: keras.Model, spec: ExampleSpec, examples: Mapping[str, np.ndarray] | None) -> None:
        """Change the initial weights that Keras has drawn in `build`.

        Args:
          spec: the description of an example, as in `build`.
          examples: the first training examples, field → [N, …]. None if saved weights are loaded afterwards.
        """


def check_examples(settings: NetworkSettings, spec: ExampleSpec) -> None:
    """Raise UserError if the chosen network can't be built for examples of this form."""
    try:
        if settings.name in NETWORKS.own:
            _check_for_own(spec)
        NETWORKS[settings.name].check(spec, settings)
    except ValueError as error:
        raise unbuildable(settings, spec, str(error)) from error


def _check_for_own(spec: ExampleSpec) -> None:
    """Raise ValueError for examples with several targets or with strings, which no network of this package takes."""
    page = "of your own (docs/extending.md#your-own-network)"
    if spec.others:
        raise ValueError(
            f"the data has {len(spec.targets)} targets: bring a network {page} with an output for each target"
        )
    if texts := [name for name, field in spec.inputs.items() if field.dtype == TEXT]:
        raise ValueError(f"'{texts[0]}' is text: bring a network {page} with TextVectorization or StringLookup in it")


def unbuildable(settings: NetworkSettings, spec: ExampleSpec, reason: str) -> UserError:
    """Return a UserError: the network can't be built for examples of this form, because of `reason`."""
    return UserError(f"model.name: '{settings.name}' can't be built for examples of {spec}: {reason}")


class FunctionNetwork(Network[NetworkSettings]):
    """A network that a user's function builds.

    The function takes no argument, or `examples`, or `examples` and `settings`.
    """

    def __init__(self, function: Callable[..., Any]):
        """Store the function. Raises UserError if the function takes other arguments.

        A pickled function is checked in `build` instead, because it is read from its file only there.
        """
        self._function = function
        if not isinstance(function, user_code.PickledFunction):
            arguments_taken(function)

    def build(self, examples: ExampleSpec, settings: NetworkSettings) -> keras.Model:
        return self._function(*(examples, settings)[: arguments_taken(self._function)])


def arguments_taken(function: Callable[..., Any]) -> int:
    """Return how many of the arguments `examples` and `settings` a user's function takes: 0, 1 (`examples`) or 2.

    A parameter with a default value is not counted, unless its name is `examples` or `settings`.

    Raises:
      UserError: the function takes other arguments.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    count = sum(1 for _ in takewhile(_is_passed, parameters))
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        count = 2
    try:
        signature.bind(*("examples", "settings")[:count])
    except TypeError as error:
        code = getattr(function, "__code__", None)
        where = f" in {Path(code.co_filename).name}" if code else ""
        takes = f"takes {len(parameters)} argument{'s' * (len(parameters) > 1)}"
        raise UserError(
            f"model.name: {getattr(function, '__name__', 'build')}{signature}{where} {takes}: the function of a "
            "network takes no argument, or `examples`, or `examples` and `settings`"
        ) from error
    return count


def _is_passed(parameter: inspect.Parameter) -> bool:
    positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return positional and (parameter.default is parameter.empty or parameter.name in ("examples", "settings"))


class SavedNetwork(Network[NetworkSettings]):
    """A network in a .keras file. The weights in the file are the initial weights."""

    def __init__(self, file: Path):
        self._file = file

    def build(self, examples: ExampleSpec, settings: NetworkSettings) -> keras.Model:
        from ps_cluster.models.saved import load_saved

        return load_saved(self._file, examples)


class Networks(Registry[Network[Any]]):
    """All networks by name, and models that Keras has saved as FILE.keras."""

    def __contains__(self, name: object) -> bool:
        return _is_saved(name) or super().__contains__(name)

    def allow_code_of(self, name: str, folder: Path) -> str:
        """Allow this process to run or read the file to which `name` refers, because the user has given this name.

        Return the name with an absolute path. A name that refers to no file is returned unchanged.
        """
        if not _is_saved(name):
            return super().allow_code_of(name, folder)
        file = user_code.absolute_path(name, folder)
        user_code.trust(file)
        return str(file)

    def code_of(self, name: str) -> Path | None:
        return Path(name) if _is_saved(name) else super().code_of(name)

    def unknown(self, name: str) -> str:
        return f"{super().unknown(name)}, or a saved model as FILE.keras"

    def _load(self, name: str) -> Network[Any]:
        if not _is_saved(name):
            return super()._load(name)
        if not Path(name).is_file():
            raise UserError(f"model.name: '{name}': there is no such file")
        if not user_code.is_trusted(Path(name)):
            raise UserError(
                f"model.name: the file '{name}' is named only in a run directory, and it may run code: if you trust this "
                f"file, add --code '{name}'"
            )
        return self._made(SavedNetwork(Path(name)), name)


def _is_saved(name: object) -> bool:
    return isinstance(name, str) and name.endswith(".keras")


def _home() -> ModuleType:
    from ps_cluster.models import networks

    return networks


NETWORKS = Networks("network", Network, _home, "ps_cluster.networks", wrap=FunctionNetwork)
