"""Write what builds a network in a script or a notebook to files, for the processes that train."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from ps_cluster.catalogue.doors import PICKLE, Reference
from ps_cluster.errors import UserError
from ps_cluster.files.plain_text import one_line
from ps_cluster.files.writing import write_whole


def write_network(model: Any, folder: Path) -> str:
    """Write a function that builds a network, or a Keras model to go on from, to `folder`. Return its name in settings.

    The file's name changes with its content. A name or a path is returned as it is.

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
    content = _pickled(model, name)
    file = folder / f"{name}-{_digest(content)}{PICKLE}"
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
    return file.rename(folder / f"model-{_digest(file.read_bytes())}.keras")


def _pickled(build: Callable[..., Any], name: str) -> bytes:
    function = _with_two_arguments(build, name)
    try:
        content: bytes = cloudpickle.dumps({name: function})
        return content
    except Exception as error:
        told = one_line(f"{type(error).__name__}: {error}", 300)
        raise UserError(f"model: the function '{name}' can't be sent to the processes that train: {told}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _with_two_arguments(build: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = inspect.signature(build)
    for count, adapted in ((2, build), (0, partial(_call_without_arguments, build))):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return adapted
    raise UserError(f"model: got {name}{signature}: write {name}(examples, settings), or {name}() without arguments")


def _call_without_arguments(build: Callable[[], Any], *_: Any) -> Any:
    return build()
