"""Build the network that a configuration chooses, with its initial weights."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ps_cluster.config.networks import NETWORKS, Network, NetworkSettings, check_examples, unbuildable
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.models.failures import FOLDERS_WITHOUT_USER_CODE
from ps_cluster.models.user_networks import check_network, check_outputs

MOST_EXAMPLES = 2000  # the largest number of examples from which initial weights are computed
_BOLD = re.compile("\x1b\\[1m(.*?)\x1b\\[0m", re.DOTALL)
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def build(
    settings: NetworkSettings, spec: ExampleSpec, *, seed: int, examples: Mapping[str, np.ndarray] | None = None
) -> keras.Model:
    """Return a network with its initial weights, which depend only on `seed` and the examples.

    Args:
      settings: the section `model`. With precision "bfloat16" the network computes in bfloat16; variables are always
        float32.
      examples: name of a field → its raw training examples [N, ...]. A network may compute initial weights from the
        first 2,000 of them (`MOST_EXAMPLES`). None if the weights are loaded afterwards.
    Raises:
      UserError: the network can't be built for such examples.
    """
    network = NETWORKS[settings.name]
    with dtype_policy(_POLICIES[settings.precision]):
        keras.utils.set_random_seed(seed)
        model = _build_checked(network, settings, spec)
    first = None if examples is None else {name: values[:MOST_EXAMPLES] for name, values in examples.items()}
    network.initialise(model, spec, first)
    return model


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Set the dtype policy of all layers that are created within the block without a policy of their own."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextmanager
def before_each_embedding(call: Callable[[keras.layers.Embedding], None]) -> Iterator[None]:
    """Call `call` with each Embedding layer that is built within the block, before Keras creates its weights."""
    build = keras.layers.Embedding.build

    def build_after_call(layer: keras.layers.Embedding, input_shape: tuple[int | None, ...] | None = None) -> None:
        call(layer)
        build(layer, input_shape)

    setattr(keras.layers.Embedding, "build", build_after_call)  # noqa: B010 (mypy refuses to assign to a method)
    try:
        yield
    finally:
        setattr(keras.layers.Embedding, "build", build)  # noqa: B010


def _build_checked(network: Network[Any], settings: NetworkSettings, spec: ExampleSpec) -> keras.Model:
    own = settings.name in NETWORKS.own
    check_examples(settings, spec)
    try:
        model = network.build(spec, settings)
        if own:
            check_outputs(model, spec, model.outputs)
        else:
            model = check_network(model, spec)
    except UserError:
        raise
    except Exception as error:
        if own and not isinstance(error, ValueError):  # Keras raises ValueError where the examples don't fit
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        bold = _BOLD.search(str(error))  # Keras prints the reason in bold, between the layer's name and its arguments
        reason = one_line(_line_of_user_code(error) + kind + (bold[1] if bold else str(error)), 500)
        raise unbuildable(settings, spec, f"{reason}{_advice_on_relative_path(error)}") from error
    return model


def _advice_on_relative_path(error: Exception) -> str:
    """Return advice for a file that was not found by its relative path; "" for other errors."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(name, str) or os.path.isabs(name):
        return ""
    return (
        ": the tasks of a run work in another folder, so a relative path is wrong there: give the absolute path, e.g. "
        f"Path(__file__).parent / '{one_line(name, 100)}', or os.path.abspath() outside of the function"
    )


def _line_of_user_code(error: BaseException | None) -> str:
    """Return the line of the user's code that an error came from, as "my.py:12: "; "" if it came from elsewhere."""
    place = ""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            if not frame.filename.startswith(FOLDERS_WITHOUT_USER_CODE):
                place = f"{Path(frame.filename).name}:{frame.lineno}: "
        error = error.__cause__
    return place
