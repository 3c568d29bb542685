"""Look up objects of one kind by name: the package's own, those of installed packages, and those in users' files."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from ps_cluster.config.setting_types import Section
from ps_cluster.config.user_code import (
    Reference,
    entry_point_names,
    is_trusted,
    load,
    load_entry_point,
    named_by_user,
    parse,
)
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import one_line


class Named(Protocol):
    """The part that all objects of the catalogue have: the name by which users choose them."""

    name: str


T = TypeVar("T", bound=Named, covariant=True)


class Registry(Generic[T]):
    """All objects of one kind (data set, mode, network, …), by name.

    The package's own are the instances of `base` in the module `home`, or in the modules of the package `home`, and the
    subclasses there that have a `name` of their own: a new one is found without being named anywhere else.
    """

    def __init__(self, noun: str, base: type[Any], home: str, group: str, wrap: Callable[[Any], Any] | None = None):
        """Keep where to look; nothing is imported yet.

        Args:
          noun: the kind's name in messages, e.g. "optimizer rule".
          base: the class of the objects. (mypy takes no abstract class for a `type[T]`.) Its `page`, where it has one, is
            the page of the documentation that shows how to bring one.
          home: the module or package that defines the package's own.
          group: the entry point group by which installed packages add others, e.g. "ps_cluster.modes".
          wrap: converts what a file or package defines, e.g. a function, to an object of the kind; None: nothing is one.
        """
        self.noun = noun
        self._base = base
        self._home = home
        self._group = group
        self._wrap = wrap
        self._brought: dict[str, T] = {}

    @property
    def settings(self) -> type[Section]:
        """The class of the settings that all objects of this kind have."""
        shared: type[Section] = self._base.Settings
        return shared

    @cached_property
    def own(self) -> dict[str, T]:
        """The package's own objects, by name."""
        found: dict[str, T] = {}
        for module in self._modules():
            things = [thing for thing in vars(module).values() if isinstance(thing, self._base)]
            made = {type(thing) for thing in things}
            things += [
                kind()
                for kind in vars(module).values()
                if isinstance(kind, type)
                and issubclass(kind, self._base)
                and vars(kind).get("name")
                and kind not in made
                if kind.__module__ == module.__name__
            ]
            found |= {thing.name: thing for thing in things}
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the package's own objects, file by file, then those of installed packages."""
        others = [name for name in entry_point_names(self._group) if name not in self.own]
        return (*self.own, *others)

    def __iter__(self) -> Iterator[T]:
        return iter(self.own.values())

    @property
    def with_settings(self) -> Iterator[Any]:
        """Yield what may have settings of its own: the package's own objects."""
        return iter(self)

    def named_by_user(self, name: str, folder: Path) -> str:
        """Return a name that the user has written, a file of code with its whole path; it may be run from now on.

        Args:
          folder: from which relative paths are seen.
        """
        return named_by_user(name, folder)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        # Installed packages last: to look for them takes milliseconds.
        return name in self.own or parse(name) is not None or name in entry_point_names(self._group)

    def __getitem__(self, name: str) -> T:
        """Return the object of this name.

        Raises:
          UserError: there is none, or it can't be loaded, or it is not of this kind.
        """
        if name in self.own:
            return self.own[name]
        if name not in self._brought:
            self._brought[name] = self._load(name)
        return self._brought[name]

    def code_of(self, name: str) -> Path | None:
        """Return the file that has to be trusted for a name, if there is one."""
        reference = parse(name)
        return reference.file if reference else None

    def check_name(self, name: str) -> str:
        """Return `name`. Raises ValueError, which lists what is supported and names the page, if it is unknown."""
        if name not in self:
            raise ValueError(f"{self.unknown(name)}: {self.page}")
        return name

    @property
    def page(self) -> str:
        """The page of the documentation that shows how to bring one."""
        return getattr(self._base, "page", "docs/extending.md")

    def unknown(self, name: str) -> str:
        """Return a message with all that is supported, and the known name that is nearest to `name`."""
        hint = did_you_mean(name, self.names)
        if name.endswith(".py"):
            hint = f"name what the file defines, as '{name:.80}:NAME'. "
        return f"{hint}There are {', '.join(self.names)}, and yours as path/to/file.py:name"

    def _load(self, name: str) -> T:
        if reference := parse(name):
            found = self._loaded(reference)
        elif name in entry_point_names(self._group):
            found = load_entry_point(self._group, name)
        else:
            raise UserError(f"{self.noun} '{name:.80}': {self.unknown(name)}: {self.page}")
        return self._made(found, name)

    def _loaded(self, reference: Reference) -> Any:
        """Return what a file defines. Raises UserError, with the page for the user who has named the file."""
        try:
            return load(reference)
        except UserError as error:
            if not is_trusted(reference.file):
                raise
            raise UserError(f"{self.noun} {error}: {self.page} shows how to bring one") from error

    def _made(self, found: Any, name: str) -> T:
        """Return `found` as an object of the kind, with `name` as its name."""
        is_class = isinstance(found, type)
        if is_class and issubclass(found, self._base):
            try:
                found = found()
            except TypeError as error:  # e.g. a method that has to be overridden is missing
                raise UserError(f"{self.noun} '{name}': {one_line(str(error), 300)}: {self.page}") from error
        elif self._wrap and callable(found) and not is_class:
            found = self._wrap(found)
        made: T = found
        if not isinstance(made, self._base):
            function = "a function, or " if self._wrap else ""
            raise UserError(
                f"'{name}' is no {self.noun}: it has to be {function}a {self._base.__module__}.{self._base.__name__}: "
                f"{self.page}"
            )
        made = copy(made)  # what the user's module holds keeps its name
        made.name = name
        return made

    def _modules(self) -> Iterator[ModuleType]:
        module = importlib.import_module(self._home)
        yield module
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield importlib.import_module(f"{self._home}.{found.name}")
