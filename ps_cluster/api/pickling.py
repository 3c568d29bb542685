"""Write functions of a script or a notebook to files, by value, for the processes that train."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from ps_cluster.catalogue.doors import PICKLE, Reference
from ps_cluster.errors import UserError
from ps_cluster.files.plain_text import one_line
from ps_cluster.files.writing import write_whole


def pickle_builder(build: Callable[..., Any], folder: Path) -> str:
    """Write a function that builds a network to `folder`. Return the reference to it.

    The file's name changes with the function.

    Raises:
      UserError: it takes other arguments, or names what can't leave this process.
    """
    name = name_of(build)
    function = _with_two_arguments(build, name)
    try:
        content = cloudpickle.dumps({name: function})
    except Exception as error:
        told = one_line(f"{type(error).__name__}: {error}", 300)
        raise UserError(f"model: the function '{name}' can't be sent to the processes that train: {told}") from error
    file = folder.absolute() / f"{name}-{hashlib.sha256(content).hexdigest()[:8]}{PICKLE}"
    write_whole(file, content)
    return str(Reference(file, name))


def name_of(function: Callable[..., Any]) -> str:
    """Return the function's name; "build" for one without a name, such as a lambda."""
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "build"


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
