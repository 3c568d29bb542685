"""The types of values on the command line: strict numbers, lists, names of the catalogue, files to write."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ps_cluster.catalogue.kinds import Kinds, Named
from ps_cluster.catalogue.task_types import EVALUATOR, TRAINING_TYPES
from ps_cluster.config.json_schema import known_keys
from ps_cluster.config.schema import sections
from ps_cluster.config.sections import CHOSEN
from ps_cluster.errors import did_you_mean
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.places import check_file, check_folder
from ps_cluster.files.plain_numbers import decimal, whole

MOST_OF_A_LIST = 100  # values in a CommaList


def completions(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the names that begin so, for the completion of a shell."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class CommaList(click.ParamType[tuple[Any, ...]]):
    """A parameter type: a tuple of values of one type, separated by commas."""

    name = "list"

    def __init__(self, one: click.ParamType[Any] = click.STRING):
        self.one = one

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value  # click converts a default twice
        parts = value.split(",")
        if len(parts) > MOST_OF_A_LIST:
            self.fail(f"{len(parts):,} values are more than the {MOST_OF_A_LIST} that are taken.", parameter, context)
        return tuple(self.one.convert(part.strip(), parameter, context) for part in parts)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{item.value}") for item in self.one.shell_complete(ctx, param, last)]


class Whole(click.IntRange):
    """A parameter type: a whole number in plain digits; click also takes `1_000`, `010` and full-width digits."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        return super().convert(_plain(whole, value, self, parameter, context), parameter, context)


class Number(click.FloatRange):
    """A parameter type: a finite number in plain digits; click takes "nan" to be in every range."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        return super().convert(_plain(decimal, value, self, parameter, context), parameter, context)


def _plain(
    read: Callable[[str], Any],
    value: Any,
    kind: click.ParamType[Any],
    parameter: click.Parameter | None,
    context: click.Context | None,
) -> Any:
    try:
        return read(value) if isinstance(value, str) else value  # a default is already a number
    except Malformed as error:
        kind.fail(f"{value!r:.80} {error}.", parameter, context)


class NameOf(click.ParamType[str]):
    """A parameter type: a name in the catalogue, or path/to/file.py:name. The configuration checks the object."""

    name = "name"

    def __init__(self, kinds: Kinds[Named]):
        self._kinds = kinds

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self._kinds.names)}|FILE.py:NAME]"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        try:
            return self._kinds.check_name(self._kinds.named_by_user(value, Path.cwd()))
        except ValueError as error:
            self.fail(f"{value!r:.80}: {error}.", parameter, context)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completions(self._kinds.names, incomplete)


class OneOf(click.Choice[str]):
    """A parameter type: one of some words. The error names the one that is nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"'{value:.200}': {did_you_mean(str(value), self.choices)}There are {', '.join(self.choices)}."


class Matching(click.ParamType[str]):
    """A parameter type: text of a form, which `says` describes."""

    name = "text"

    def __init__(self, pattern: str, says: str):
        self._pattern, self._says = re.compile(pattern), says

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        if self._pattern.fullmatch(value):
            return str(value)
        self.fail(f"{value!r:.80} is not {self._says}.", parameter, context)


class OfTypes(click.ParamType[tuple[str | None, Any]]):
    """A parameter type: VALUE, or TYPE=VALUE for the tasks of one type. It becomes (type or None, value)."""

    name = "[TYPE=]VALUE"

    def __init__(self, one: click.ParamType[Any]):
        self.one = one

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str | None, Any]:
        kind, given, rest = value.rpartition("=")
        if given:
            _TASK_TYPE.convert(kind, parameter, context)
        return kind or None, self.one.convert(rest, parameter, context)


class Assignment(click.ParamType[str]):
    """A parameter type: KEY=VALUE, whose keys a shell completes. The configuration checks it."""

    name = "KEY=VALUE"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completions((key for key in known_keys() if "." in key), incomplete)


class OutputPath(click.Path):
    """A parameter type: a file or folder to write at the end. One that can't be written is refused at once."""

    def __init__(self, check: Callable[[Path], None]):
        super().__init__(path_type=Path)
        self._check = check

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, parameter, context)))
        try:
            self._check(path)
        except Malformed as error:
            self.fail(f"'{path}' {error}.", parameter, context)
        return path


_TASK_TYPE = OneOf((*TRAINING_TYPES, EVALUATOR))
OUTPUT_FILE, OUTPUT_FOLDER = OutputPath(check_file), OutputPath(check_folder)
FOLDER = click.Path(path_type=Path)  # a folder to read
LIST = CommaList()


def type_of_setting(key: str) -> click.ParamType[Any] | type:
    """Return the type of an option for the setting of a dotted key: its choices and range are those of the setting."""
    section, name = key.split(".")
    if section in CHOSEN and name == CHOSEN[section].key:
        return NameOf(CHOSEN[section].kinds)
    field = _field(section, name)
    if get_origin(field.annotation) is Literal:
        return OneOf(get_args(field.annotation))
    kind = next(kind for kind in (*get_args(field.annotation), field.annotation) if kind is not type(None))
    if get_origin(kind) is Literal:
        return OneOf(get_args(kind))  # a setting that also takes a text has an option of its own for it
    kind = getattr(kind, "__origin__", kind)  # of a type with checks, as PathFromText
    kinds_of_bound = ("ge", "gt", "le", "lt")
    bounds = {name: getattr(bound, name) for bound in field.metadata for name in kinds_of_bound if hasattr(bound, name)}
    if kind in (int, float):
        return (Whole if kind is int else Number)(
            min=bounds.get("ge", bounds.get("gt")),
            max=bounds.get("le", bounds.get("lt")),
            min_open="gt" in bounds,
            max_open="lt" in bounds,
        )
    if issubclass(kind, BaseModel):
        return click.STRING  # a short form of several settings (config/options.py)
    return click.Path(path_type=Path) if kind is Path else kind


def _field(section: str, name: str) -> FieldInfo:
    fields = sections()[section].model_fields
    if name in fields:
        return fields[name]
    known = (kind.Settings.model_fields for kind in CHOSEN[section].kinds.with_settings)
    found: FieldInfo = next(fields[name] for fields in known if name in fields)
    return found
