"""The types of values on the command line: strict numbers, lists, names of the registry, files to write."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ps_cluster.errors import did_you_mean
from ps_cluster.files.values import Malformed, parse_decimal, parse_integer, refuse_address
from ps_cluster.files.writable import check_file, check_folder

if TYPE_CHECKING:
    from ps_cluster.config.registry import Named, Registry

MOST_OF_A_LIST = 100  # values in a CommaList


def completions(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the names that begin with `incomplete`, the unfinished word in the user's shell."""
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
            self.fail(
                f"there are {len(parts):,} values, but at most {MOST_OF_A_LIST} are accepted.", parameter, context
            )
        return tuple(self.one.convert(part.strip(), parameter, context) for part in parts)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{item.value}") for item in self.one.shell_complete(ctx, param, last)]


class _PlainDigits(click.ParamType[Any]):
    """A base class for types of numbers in plain digits, which `read` parses.

    In the list of a subclass's base classes, this class has to stand before click's class.
    """

    read: Callable[[str], Any]

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            number = self.read(value) if isinstance(value, str) else value  # a default is already a number
        except Malformed as error:
            self.fail(f"{value!r:.80} {error}.", parameter, context)
        return super().convert(number, parameter, context)


class Integer(_PlainDigits, click.IntRange):
    """A parameter type: an integer in plain digits. Click alone would accept `1_000`, `010` and full-width digits."""

    name = "integer"
    read = staticmethod(parse_integer)


class Number(_PlainDigits, click.FloatRange):
    """A parameter type: a finite number in plain digits. Click alone would accept "nan" in every range."""

    name = "number"
    read = staticmethod(parse_decimal)


class NameOf(click.ParamType[str]):
    """A parameter type: a name in a registry, or path/to/file.py:name. The object itself is checked later."""

    name = "name"

    def __init__(self, kinds: Registry[Named]):
        self._kinds = kinds

    def choices(self, *, explained: bool) -> str:
        """Return the names for a help text. `explained`: whether to add the descriptions of the objects."""
        descriptions = {name: self._kinds[name].description if explained else "" for name in self._kinds.names}
        names = ", ".join(f"{name} ({text})" if text else name for name, text in descriptions.items())
        return f"Choose from {names}, or your own as FILE.py:NAME."

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        try:
            return self._kinds.check_name(self._kinds.allow_code_of(value, Path.cwd()))
        except ValueError as error:
            self.fail(f"{value!r:.80}: {error}.", parameter, context)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completions(self._kinds.names, incomplete)


class OneOf(click.Choice[str]):
    """A parameter type: one of some words. The error names the most similar word."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"'{value:.200}': {did_you_mean(str(value), self.choices)}Choose from {', '.join(self.choices)}."


class Matching(click.ParamType[str]):
    """A parameter type: text that matches a pattern, which `description` describes."""

    name = "text"

    def __init__(self, pattern: str, description: str):
        self._pattern, self._description = re.compile(pattern), description

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        if self._pattern.fullmatch(value):
            return str(value)
        self.fail(f"{value!r:.80} is not {self._description}.", parameter, context)


class CheckedPath(click.Path):
    """A parameter type: the path of a file or folder, which is refused at once if `check` raises Malformed."""

    def __init__(self, check: Callable[[Path], None]):
        super().__init__(path_type=Path)
        self._check = check

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, parameter, context)))
        try:
            self._check(path)
        except Malformed as error:
            self.fail(f"'{value}' {error}.", parameter, context)
        return path


STDOUT = Path("-")


class OutputPath(CheckedPath):
    """A parameter type: a file or folder that the command writes at its end, or standard output if `prints` is true."""

    def __init__(self, check: Callable[[Path], None], *, prints: bool = False):
        def check_output(path: Path) -> None:
            if path != STDOUT:
                check(path)
            elif not prints:
                raise Malformed("can't be printed: give the path of a file")

        super().__init__(check_output)


INPUT_PATH = CheckedPath(lambda path: refuse_address(str(path)))
OUTPUT_FILE, OUTPUT_FOLDER = OutputPath(check_file), OutputPath(check_folder)
PRINTED_FILE = OutputPath(check_file, prints=True)
LIST = CommaList()
