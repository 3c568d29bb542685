"""Write what builds a network in a script or a notebook to files, for the processes that train."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from ps_cluster.api.function_description import described
from ps_cluster.catalogue.doors import PICKLE, Reference
from ps_cluster.catalogue.networks import arguments_taken
from ps_cluster.errors import UserError
from ps_cluster.files.plain_text import one_line
from ps_cluster.files.writing import write_whole


def write_network(model: Any, folder: Path) -> str:
    """Write a function that builds a network, or a Keras model to go on from, to `folder`. Return its name in settings.

    The file's name changes with what the network is, and not with the process that sends it: the same function of a
    script that is started again has the same name. A name or a path is returned as it is.

    Raises:
      UserError: it is something else, takes other arguments, or names what can't leave this process.
    """
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    folder = folder.absolute()
    if _is_keras_model(model):
        return str(_saved(model, folder))
    if not callable(model):
        raise UserError(f"model: got {type(model).__name__}: give a name, a path, a function or a Keras model")
    name = name_of(model)
    arguments_taken(model)
    try:
        content, description = cloudpickle.dumps({name: model}), described(model)
    except Exception as error:
        told = one_line(f"{type(error).__name__}: {error}", 300)
        raise UserError(f"model: the function '{name}' can't be sent to the processes that train: {told}") from error
    file = folder / f"{name}-{_digest(description)}{PICKLE}"
    write_whole(file, content)
    return str(Reference(file, name))


def name_of(model: Any) -> str:
    """Return the name of a function or a Keras model; "build" for one without a name, such as a lambda."""
    name = getattr(model, "__name__", "") or getattr(model, "name", "")
    return name if name.isidentifier() else "build"


def _is_keras_model(model: Any) -> bool:
    keras = sys.modules.get("keras")  # whoever has a model has imported it; here it would take seconds
    return keras is not None and isinstance(model, keras.Model)


def _saved(model: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.keras"
    model.save(file)
    with zipfile.ZipFile(file) as archive:  # beside its layers, the file has the time, and addresses of objects
        layers = re.sub(rb'"shared_object_id": \d+', b"", archive.read("config.json"))
    weights = (f"{one.dtype} {one.shape}".encode() + one.tobytes() for one in map(np.asarray, model.get_weights()))
    return file.replace(folder / f"model-{_digest(layers, *weights)}.keras")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]
