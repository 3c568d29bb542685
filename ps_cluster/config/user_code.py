"""Load users' code: a name in a Python file, a pickled function, or an entry point of an installed package.

A file is run only if the user has named it on the command line or in the file of --config. A run directory or a
checkpoint may come from another person, so a file that is named only there is never run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.process_variables import set_trusted_files, trusted_files
from ps_cluster.quiet_import import without_first_lines

PICKLE = ".pickle"
_REFERENCE = re.compile(rf"(?P<file>.+(\.py|\{PICKLE})):(?P<name>[A-Za-z_]\w*)", re.DOTALL)


class Reference(NamedTuple):
    """The name of an object in a Python file, or of a function in a file of pickled functions."""

    file: Path
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def parse(text: str) -> Reference | None:
    """Parse `path/to/file.py:name`. Return None for any other text."""
    match = _REFERENCE.fullmatch(text)
    return Reference(Path(match["file"]), match["name"]) if match else None


def absolute(text: str, folder: Path) -> str:
    """Return FILE:NAME with an absolute path, or any other text unchanged. Relative paths start at `folder`."""
    reference = parse(text)
    if reference is None:
        return text
    return str(Reference(absolute_path(reference.file, folder), reference.name))


def absolute_path(path: str | Path, folder: Path) -> Path:
    """Return the absolute path of a file. A relative path starts at `folder`; ~ is the home directory."""
    return Path(os.path.normpath(folder.absolute() / os.path.expanduser(path)))


def trust(file: Path) -> None:
    """Trust `file`, which the user has named, so that this process and its children may run it."""
    set_trusted_files(dict.fromkeys([*trusted_files(), str(file.absolute())]))


def trust_reference(text: str, folder: Path) -> str:
    """Trust the file of a user's reference FILE.py:NAME. Return the reference with an absolute path.

    Any other text is returned unchanged. Relative paths start at `folder`.
    """
    text = absolute(text, folder)
    if reference := parse(text):
        trust(reference.file)
    return text


def is_trusted(file: Path) -> bool:
    """Return whether the user has named `file`, so that it may be run."""
    return str(file.absolute()) in trusted_files()


def short_name(text: str) -> str:
    """Return the name in a reference FILE:NAME, or any other text unchanged."""
    reference = parse(text)
    return reference.name if reference else text


def defined_in_trusted() -> dict[str, Any]:
    """Run the Python files that the user has named. Return, by name, the objects that the files define at top level.

    Raises:
      UserError: a file can't be read or run.
    """
    files = [Path(name) for name in trusted_files() if name.endswith(".py")]
    return {name: thing for file in files for name, thing in vars(_module(Reference(file, "*"))).items()}


_file_that_runs: ContextVar[str | None] = ContextVar("_file_that_runs", default=None)


@contextmanager
def _running(file: str) -> Iterator[None]:
    token = _file_that_runs.set(file)
    try:
        yield
    finally:
        _file_that_runs.reset(token)


def file_that_runs() -> str | None:
    """Return the user's file that this process is importing at the moment; None if there is none."""
    return _file_that_runs.get()


def load(reference: Reference) -> Any:
    """Run the file of a reference, once per process, and return the object with the reference's name.

    A pickled function is read when it is first called. The launcher never calls the function of a network, because that
    would import TensorFlow.

    Raises:
      UserError: the user did not name the file, or the file can't be read or run, or does not define the name.
    """
    if not is_trusted(reference.file):
        raise UserError(
            f"the code '{reference}' is named only in a run directory: read it, then add --code "
            f"'{reference.file}' to let it run"
        )
    if not reference.file.is_file():
        raise UserError(f"'{reference}': there is no file '{reference.file}'")
    if reference.file.suffix == PICKLE:
        return PickledFunction(reference)
    module = _module(reference)
    if not hasattr(module, reference.name):
        raise UserError(f"'{reference}': the file defines no '{reference.name}'")
    return getattr(module, reference.name)


class PickledFunction:
    """A function from a script or notebook, in a trusted file that the Python API has written (`api/networks.py`)."""

    def __init__(self, reference: Reference):
        self._reference = reference

    def __call__(self, *arguments: Any) -> Any:
        """Call the function. Raises UserError if the function can't be read from its file."""
        return self._function(*arguments)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @cached_property
    def _function(self) -> Callable[..., Any]:
        try:
            with _running(str(self._reference.file)):
                functions = pickle.loads(self._reference.file.read_bytes())
        except Exception as error:  # e.g. a module that the function imports is not installed
            raise UserError(f"'{self._reference}': the function can't be read: {_reason(error)}") from error
        if not isinstance(functions, dict) or self._reference.name not in functions:
            raise UserError(f"'{self._reference}': the file holds no '{self._reference.name}'")
        function: Callable[..., Any] = functions[self._reference.name]
        return function


@cache
def entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of installed packages in `group`. Cached, as this reads the lists of all packages."""
    return tuple(metadata.entry_points(group=group))


def entry_point_names(group: str) -> list[str]:
    """Return the names that installed packages have registered in `group`."""
    return sorted({point.name for point in entry_points(group)})


def load_entry_point(group: str, name: str) -> Any:
    """Return the object that an installed package has registered. Raises UserError if it can't be loaded."""
    point = next(point for point in entry_points(group) if point.name == name)
    try:
        with without_first_lines(), _running(point.value):
            return point.load()
    except Exception as error:
        raise UserError(
            f"'{name}' of the entry points '{group}' ({point.value}) can't be loaded: {_reason(error)}"
        ) from error


def _module(reference: Reference) -> ModuleType:
    """Import the file of a reference under a unique module name. The file can import other files in its folder."""
    path = str(reference.file)
    name = f"ps_cluster_door_{hashlib.sha256(path.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # true for every name that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(reference.file.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        with without_first_lines(), _running(path):  # users' files often begin with `import keras`
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"'{reference}': the file can't be run: {_reason(error)}") from error
    return module


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return one_line(f"{kind}{error}", 500)
