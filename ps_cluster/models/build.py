"""Build the network that a configuration chooses, with its initial weights."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.catalogue.networks import NETWORKS, Network, NetworkSettings
from ps_cluster.errors import UserError
from ps_cluster.files.plain_text import one_line
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.models.brought import check_outputs, look_over

EXAMPLES = 2000  # most examples that initial weights are computed from
# Where code is that is not the user's: this package, and what is installed. Python's frozen modules begin with "<frozen".
_NOT_THE_USERS = (
    str(IMPORT_FOLDER / "ps_cluster"), "<frozen", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
)  # fmt: skip
_BOLD = re.compile("\x1b\\[1m(.*?)\x1b\\[0m", re.DOTALL)
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def build(
    settings: NetworkSettings, spec: ExampleSpec, *, seed: int, examples: Mapping[str, np.ndarray] | None = None
) -> keras.Model:
    """Return a network with its initial weights, which depend only on `seed` and the examples.

    Args:
      settings: precision "float32", or "bfloat16" to compute in bfloat16; variables stay float32.
      spec: what the network is given, and what it shall return.
      examples: name of a field → raw training examples [N, ...], of which the first `EXAMPLES` may be used; None if
        the weights are loaded next.
    Raises:
      UserError: the network can't be built for such examples.
    """
    network = NETWORKS[settings.name]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[settings.precision])
    try:
        keras.utils.set_random_seed(seed)
        model = _built(network, settings, spec)
    finally:
        keras.config.set_dtype_policy(before)
    first = None if examples is None else {name: values[:EXAMPLES] for name, values in examples.items()}
    network.initialise(model, spec, first)
    return model


def _built(network: Network, settings: NetworkSettings, spec: ExampleSpec) -> keras.Model:
    own = settings.name in NETWORKS.own
    try:
        model = network.build(spec, settings)
        if own:
            check_outputs(model, spec, model.outputs)
        else:
            model = look_over(model, spec)
    except UserError:
        raise
    except Exception as error:
        if own and not isinstance(error, ValueError):  # as Keras says what does not fit
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = one_line(_place(error) + kind + _reason(str(error)), 500)
        raise UserError(f"model.name: '{settings.name}' can't be built for examples of {spec}: {reason}") from error
    return model


def _place(error: BaseException | None) -> str:
    """Return the line of the user's code that an error came from, as "my.py:12: "; nothing where it came from elsewhere."""
    place = ""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            if not frame.filename.startswith(_NOT_THE_USERS):
                place = f"{Path(frame.filename).name}:{frame.lineno}: "
        error = error.__cause__
    return place


def _reason(text: str) -> str:
    """Return the part of an error of Keras that it writes in bold, without the layer and its arguments around it."""
    bold = _BOLD.search(text)
    return bold[1] if bold else text
