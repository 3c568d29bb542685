"""Write the network of a script or a notebook to files, for the processes that train it. Does not import TensorFlow itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from ps_cluster.api.described import described
from ps_cluster.config.networks import arguments_taken
from ps_cluster.config.user_code import PICKLE, Reference
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_whole


def write_network(model: Any, folder: Path) -> str:
    """Save a function that builds a network, or a Keras model to continue from. Return the value of `model.name`.

    `model.name` is the setting that chooses the network. The name of the file depends on the network, but not on the
    process that writes it. So if a script is started again, the same function has the same name. If `model` is a name
    or a path, nothing is saved, and it is returned unchanged.
    """
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    folder = folder.absolute()
    keras = sys.modules.get("keras")  # a caller with a model has imported Keras; importing it here would take seconds
    if keras is not None and isinstance(model, keras.Model):
        return _write_model(model, folder)
    if not callable(model):
        raise UserError(f"model: got {type(model).__name__}: give a name, a path, a function or a Keras model")
    arguments_taken(model)
    name = name_of(model)
    return _write_function(model, folder, name, described_by=model, what=f"the function '{name}'")


def _write_function(function: Any, folder: Path, name: str, *, described_by: Any, what: str) -> str:
    """Pickle a function by value. Return the value of the setting `model.name` that refers to the file.

    The name of the file depends on `name` and on the object `described_by`. `what` names the function in messages.
    """
    try:
        with contextlib.ExitStack() as stack:
            # In a child of multiprocessing the script is not `__main__`, and only `__main__` is pickled by value.
            if (script := sys.modules.get("__mp_main__")) is not None:
                cloudpickle.register_pickle_by_value(script)
                stack.callback(cloudpickle.unregister_pickle_by_value, script)
            content, description = cloudpickle.dumps({name: function}), described(described_by)
    except Exception as error:
        told = one_line(f"{type(error).__name__}: {error}", 300)
        raise UserError(f"model: {what} can't be sent to the processes that train: {told}") from error
    file = folder / f"{name}-{_digest(description)}{PICKLE}"
    write_whole(file, content)
    return str(Reference(file, name))


def name_of(model: object) -> str:
    """Return the name of a function or a Keras model; "build" for a function without a name, such as a lambda."""
    name = getattr(model, "__name__", "") or getattr(model, "name", "")
    return name if name.isidentifier() else "build"


def _write_model(model: Any, folder: Path) -> str:
    """Write a Keras model to a file. If the model needs the caller's code, the file contains this code too."""
    from ps_cluster.models.by_value import by_value, own_objects

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.keras"
    try:
        model.save(file)
    except Exception as error:
        reason = str(error).partition("Example:")[0]  # Keras's message ends with an example: the code of a class
        told = one_line(f"{type(error).__name__}: {reason}", 300)
        raise UserError(
            f"model: Keras can't save it, so it can't be sent to the processes that train: {told}"
        ) from error
    with zipfile.ZipFile(file) as archive:  # other parts, e.g. times, differ between equal models
        layers = re.sub(rb'"shared_object_id": \d+', b"", archive.read("config.json"))
    weights = (f"{one.dtype} {one.shape}".encode() + one.tobytes() for one in map(np.asarray, model.get_weights()))
    content = (layers, *weights)
    objects = own_objects(model)
    if not objects:
        return str(file.replace(folder / f"model-{_digest(*content)}.keras"))
    function = by_value(file.read_bytes(), objects)
    file.unlink()
    return _write_function(function, folder, "model", described_by=(content, objects), what="its own code")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]
