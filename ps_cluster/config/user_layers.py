"""The layers of settings that a user gives: files, environment variables and options, each with its name.

All of them are the user's own, so code that they name may be run. A run directory is no such layer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from ps_cluster.config.known_keys import known_keys
from ps_cluster.config.sections import CHOSEN, KEY, Layer, flat, merged, nested
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import Malformed
from ps_cluster.files.yaml_files import parse_yaml, read_yaml

EXTENDS = "extends"
MOST_FILES = 10  # that extend each other
VARIABLE = "PS_CLUSTER__"
OPTIONS = "options"
ISOLATION_VARIABLE = VARIABLE + KEY.upper().replace(".", "__")
_VARIABLE = re.compile(rf"{VARIABLE}[A-Z0-9]+(_[A-Z0-9]+)*(__[A-Z0-9]+(_[A-Z0-9]+)*){{1,9}}")


@dataclass(frozen=True)
class NamedLayer:
    """Settings, and where they come from.

    Attributes:
      origin: the name in messages: a file, a recipe, an environment variable, TF_CONFIG, or "options".
      settings: sections → values.
      may_repeat: whether defaults of settings that the mode does not use are taken, as the config.yaml of a run has them.
      parts: the layers that this one was merged from, the lowest first; empty where it is one piece.
    """

    origin: str
    settings: Layer
    may_repeat: bool = False
    parts: tuple[NamedLayer, ...] = ()

    def has(self, field: str) -> bool:
        """Return whether a dotted key, a part of it or the whole that it is part of is among these settings."""
        return any(
            f"{key}.".startswith(f"{field}.") or f"{field}.".startswith(f"{key}.") for key in flat(self.settings)
        )

    def origin_of(self, field: str) -> str:
        """Return the name of the part that decides a dotted key, or the layer's own name."""
        return next((part.origin for part in reversed(self.parts) if part.has(field)), self.origin)


def of_file(file: Path) -> list[NamedLayer]:
    """Return a file's settings over those of the files that it extends, the lowest first.

    Raises:
      UserError: a file can't be read, or they extend each other in a circle.
    """
    found: list[NamedLayer] = []
    seen: set[Path] = set()
    where = ""  # the setting that names the file
    following: Path | None = file
    while following is not None:
        path, following = following, None
        seen.add(_real(path))
        try:
            settings = read_yaml(path)
        except UserError as error:
            raise UserError(f"{where}{error}") from error
        if EXTENDS in settings:
            if len(found) == MOST_FILES - 1:
                raise UserError(f"{path}: {EXTENDS}: at most {MOST_FILES} files extend each other: join some of them")
            following = _extended(path, settings.pop(EXTENDS), seen)
            where = f"{path}: {EXTENDS}: "
        found.append(NamedLayer(str(path), trusted(settings, path.absolute().parent), may_repeat=True))
    return found[::-1]


def settings_of_file(file: Path) -> Layer:
    """Return the settings of a file and of those that it extends. Raises UserError as `of_file`."""
    found: Layer = {}
    for layer in of_file(file):
        found = merged(found, layer.settings)
    return found


def of_environment(environment: Mapping[str, str]) -> list[NamedLayer]:
    """Return a layer for each variable PS_CLUSTER__SECTION__KEY; its value is read as YAML.

    Raises:
      UserError: a variable of another form, or a value that is no YAML.
    """
    given = ((name, _of_variable(name, environment[name])) for name in variables(environment))
    return [NamedLayer(name, trusted(layer, Path.cwd())) for name, layer in given]


def settings_of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return dotted key → value of all variables. Raises UserError as `of_environment`."""
    found: dict[str, Any] = {}
    for layer in of_environment(environment):
        sections = layer.origin.removeprefix(VARIABLE).lower().split("__")
        found[".".join(sections)] = reduce(getitem, sections, layer.settings)
    return found


def variables(environment: Iterable[str]) -> list[str]:
    """Return the names of the variables that give settings."""
    return sorted(name for name in environment if name.startswith(VARIABLE))


def without_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without these variables: for a command whose settings are all decided.

    That of the isolation stays: the strictest that anybody asks for counts.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(VARIABLE) or name == ISOLATION_VARIABLE
    }


def of_options(overrides: Mapping[str, Any]) -> NamedLayer:
    """Return the layer of the options: dotted key → value."""
    return NamedLayer(OPTIONS, trusted(nested(overrides), Path.cwd()))


def trusted(layer: Layer, folder: Path) -> Layer:
    """Return a user's layer with absolute paths for the code and data that it names; that code may be run."""
    for section, (key, kinds) in CHOSEN.items():
        values = layer.get(section)
        name = values.get(key) if isinstance(values, dict) else None
        if isinstance(name, str):
            layer = merged(layer, {section: {key: kinds.named_by_user(name, folder)}})
    return layer


def names_of(layers: Iterable[NamedLayer]) -> str:
    """Return the origins of the layers that have any settings, for an error of settings that do not fit together."""
    return " and ".join(layer.origin for layer in layers if flat(layer.settings)) or OPTIONS


def _real(path: Path) -> Path:
    """Return a path without links. Unlike `Path.resolve` it also takes a link to itself, which can't be read later."""
    return Path(os.path.realpath(path))


def _extended(file: Path, name: Any, seen: set[Path]) -> Path:
    """Return the file that `file` extends; a relative path is as seen from `file`."""
    where = f"{file}: {EXTENDS}: got {name!r:.300}"
    if not isinstance(name, str) or not name or "\0" in name:
        raise UserError(f"{where}: name one file, as seen from this one")
    path = file.parent / os.path.expanduser(name)
    if _real(path) in seen:
        raise UserError(f"{where}: the files extend each other in a circle: leave it out in one of them")
    return path


def _of_variable(name: str, text: str) -> Layer:
    if not _VARIABLE.fullmatch(name):
        raise UserError(f"{name:.200}: write it as {VARIABLE}SECTION__KEY, e.g. {VARIABLE}OPTIMIZER__LEARNING_RATE=0.1")
    try:
        return nested({name.removeprefix(VARIABLE).lower().replace("__", "."): parse_yaml(text)})
    except Malformed as error:
        raise UserError(f"{name}: the value {error}") from error


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return `('optimizer.learning_rate', 0.1)` for `'optimizer.learning_rate=0.1'`; the value is read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+){1,9}", key.strip()):
        hint = did_you_mean(key.strip(), [known for known in known_keys() if "." in known])
        raise UserError(f"--set {text!r:.300}: {hint}write it as section.key=value, e.g. optimizer.learning_rate=0.1")
    try:
        return key.strip(), parse_yaml(value)
    except Malformed as error:
        raise UserError(f"--set {text!r:.300}: the value {error}") from error
