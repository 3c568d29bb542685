"""Read the sources of the user's settings: files, environment variables and options.

The user has written all of these settings, so the code that they name may be run. This is not true of the settings in a
run directory, which may come from another person.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ps_cluster.config.schema import known_keys
from ps_cluster.config.sections import CHOICES, ISOLATION_KEY, NestedSettings, flat, merged, nested
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import Malformed
from ps_cluster.files.yaml_files import parse_yaml, read_yaml

EXTENDS = "extends"
MOST_FILES = 10  # the longest chain of files that extend each other
VARIABLE = "PS_CLUSTER__"
OPTIONS = "options"
ISOLATION_VARIABLE = VARIABLE + ISOLATION_KEY.upper().replace(".", "__")
_VARIABLE = re.compile(rf"{VARIABLE}[A-Z0-9]+(_[A-Z0-9]+)*(__[A-Z0-9]+(_[A-Z0-9]+)*){{1,9}}")


@dataclass(frozen=True)
class SettingsSource:
    """The settings of one source, such as a file, a variable or the options, with the name of their origin.

    Attributes:
      origin: the name of the source in messages: a file, a recipe, an environment variable, TF_CONFIG, or "options".
      settings: the settings.
      may_repeat: whether `settings` may contain settings that the mode does not use, with their defaults, as the
        config.yaml of a run does.
      parts: the sources from which this source was merged. Later ones win.
    """

    origin: str
    settings: NestedSettings
    may_repeat: bool = False
    parts: tuple[SettingsSource, ...] = ()

    def has(self, field: str) -> bool:
        """Return whether the source sets the dotted key `field`.

        This is also true if the source sets only a part of the value of `field`, or a value that contains `field`.
        """
        return any(
            f"{key}.".startswith(f"{field}.") or f"{field}.".startswith(f"{key}.") for key in flat(self.settings)
        )

    def origin_of(self, field: str) -> str:
        """Return where the value of a dotted key comes from.

        This is the origin of the last of the merged sources, `parts`, that sets the key, or `origin` if none sets it.
        """
        return next((part.origin for part in reversed(self.parts) if part.has(field)), self.origin)


def of_file(file: Path) -> list[SettingsSource]:
    """Return the settings of a file and of the files that it extends. Later sources override earlier ones."""
    found: list[SettingsSource] = []
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
                raise UserError(
                    f"{path}: {EXTENDS}: at most {MOST_FILES} files may extend each other: merge some of them"
                )
            following = _extended(path, settings.pop(EXTENDS), seen)
            where = f"{path}: {EXTENDS}: "
        found.append(SettingsSource(str(path), trust_names(settings, path.absolute().parent), may_repeat=True))
    return found[::-1]


def settings_of_file(file: Path) -> NestedSettings:
    """Return the merged settings of a file and of the files that it extends."""
    return merged(*(source.settings for source in of_file(file)))


def of_environment(environment: Mapping[str, str]) -> list[SettingsSource]:
    """Return the settings of each variable PS_CLUSTER__SECTION__KEY. The value of the variable is read as YAML."""
    given = ((name, _of_variable(name, environment[name])) for name in variables(environment))
    return [SettingsSource(name, trust_names(nested({key: value}), Path.cwd())) for name, (key, value) in given]


def settings_of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings, dotted key → value, of all environment variables that set a setting."""
    return dict(_of_variable(name, environment[name]) for name in variables(environment))


def variables(environment: Iterable[str]) -> list[str]:
    """Return the names of the environment variables that set a setting."""
    return sorted(name for name in environment if name.startswith(VARIABLE))


def without_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that set settings, for a command whose settings are already decided.

    The variable for `cluster.isolation` stays, because the strictest value of this setting always wins.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(VARIABLE) or name == ISOLATION_VARIABLE
    }


def of_options(overrides: Mapping[str, Any]) -> SettingsSource:
    """Return the settings of the command's options. `overrides`: dotted key → value."""
    return SettingsSource(OPTIONS, trust_names(nested(overrides), Path.cwd()))


def trust_names(settings: NestedSettings, folder: Path) -> NestedSettings:
    """Trust the files of code that are named in a user's settings. Return the settings with absolute paths."""
    for choice in CHOICES:
        if isinstance(name := choice.name_in(settings), str):
            settings = merged(settings, {choice.section: {choice.key: choice.kinds.allow_code_of(name, folder)}})
    return settings


def names_of(sources: Iterable[SettingsSource]) -> str:
    """Return the origins of all sources that have settings, for an error about settings that do not fit together."""
    return " and ".join(source.origin for source in sources if flat(source.settings)) or OPTIONS


def _real(path: Path) -> Path:
    """Return a path without symlinks.

    Unlike `Path.resolve`, this accepts a symlink to itself. Reading such a file fails later.
    """
    return Path(os.path.realpath(path))


def _extended(file: Path, name: Any, seen: set[Path]) -> Path:
    """Return the file that `file` extends. A relative path starts at the folder of `file`."""
    where = f"{file}: {EXTENDS}: got {name!r:.300}"
    if not isinstance(name, str) or not name or "\0" in name:
        raise UserError(f"{where}: name one file by its path relative to this file")
    path = file.parent / os.path.expanduser(name)
    if _real(path) in seen:
        raise UserError(f"{where}: the files extend each other in a circle: remove {EXTENDS} from one of them")
    return path


def _of_variable(name: str, text: str) -> tuple[str, Any]:
    """Return the dotted key and the value that an environment variable sets."""
    if not _VARIABLE.fullmatch(name):
        raise UserError(f"{name:.200}: write it as {VARIABLE}SECTION__KEY, e.g. {VARIABLE}OPTIMIZER__LEARNING_RATE=0.1")
    try:
        return name.removeprefix(VARIABLE).lower().replace("__", "."), parse_yaml(text)
    except Malformed as error:
        raise UserError(f"{name}: the value {error}") from error


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse e.g. `'optimizer.learning_rate=0.1'` to `('optimizer.learning_rate', 0.1)`. The value is read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+){1,9}", key.strip()):
        hint = did_you_mean(key.strip(), [known for known in known_keys() if "." in known])
        raise UserError(f"--set {text!r:.300}: {hint}write it as section.key=value, e.g. optimizer.learning_rate=0.1")
    try:
        return key.strip(), parse_yaml(value)
    except Malformed as error:
        raise UserError(f"--set {text!r:.300}: the value {error}") from error
