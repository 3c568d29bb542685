"""Look up modes, networks, … by name: those of this package, of installed packages, and in users' files."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from ps_cluster.config.setting_types import Section
from ps_cluster.config.user_code import (
    entry_point_names,
    is_trusted,
    load,
    load_entry_point,
    parse,
    trust_reference,
)
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import one_line


class Named:
    """An object with a name by which users choose it. This is the base class of all objects in registries.

    Attributes:
      name: the name.
      description: a sentence for --help that describes the object, or "".
      page: the page of the documentation that shows how to write such an object.
      Settings: the class of the section in which a configuration names the object, if there is such a section.
    """

    name: str = ""
    description: str = ""
    page = "docs/extending.md"
    Settings: type[Section] = Section

    def expected_classes(self) -> Mapping[str, type]:
        """Return the attributes whose values have to be classes: name → the required base class of the value."""
        return {}


T = TypeVar("T", bound=Named, covariant=True)


class Registry(Generic[T]):
    """All objects of one type (data set, mode, network, …), by name.

    The function `home` returns the module, or the package of several modules, that defines the objects of ps_cluster.
    The registry searches these modules for instances of `base`. If a module defines a subclass of `base` with a `name`,
    but no instance of it, the registry creates the instance. So a new object need not be listed anywhere.
    """

    def __init__(
        self,
        noun: str,
        base: type[T],
        home: Callable[[], ModuleType],
        group: str,
        wrap: Callable[[Any], T] | None = None,
    ):
        """Create a registry. Nothing is imported yet.

        Args:
          noun: the word for an object in messages, e.g. "optimizer rule".
          base: the class of the objects.
          home: imports and returns the module or package that defines the objects of this package.
          group: the entry point group through which installed packages add objects, e.g. "ps_cluster.modes".
          wrap: converts a function in a user's file to an object. If it is None, functions are refused.
        """
        self.noun = noun
        self._base = base
        self._home = home
        self._group = group
        self._wrap = wrap
        self._brought: dict[str, T] = {}

    @property
    def settings(self) -> type[Section]:
        """The class with the settings that all objects have in common."""
        return self._base.Settings

    @cached_property
    def own(self) -> dict[str, T]:
        """The objects of this package, by name.

        Raises:
          UserError: two objects have the same name.
        """
        found: dict[str, T] = {}
        home = self._home()
        inner = (one.name for one in pkgutil.iter_modules(getattr(home, "__path__", ())))
        for module in (home, *(importlib.import_module(f"{home.__name__}.{name}") for name in inner)):
            for thing in self._objects_of(module):
                first = found.setdefault(thing.name, thing)
                if first is not thing:
                    raise UserError(
                        f"{self.noun} '{thing.name}' is defined twice, by {_full_name(type(first))} and by "
                        f"{_full_name(type(thing))}: give one of them another name"
                    )
        return found

    def _objects_of(self, module: ModuleType) -> Iterator[T]:
        """Yield the objects in a module.

        If a class that the module defines has a `name`, but the module has no object of it, yield a new object.
        """
        objects = [thing for thing in vars(module).values() if isinstance(thing, self._base)]
        yield from objects
        with_objects = {type(one) for one in objects}
        classes = (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, self._base))
        for kind in classes:
            is_imported = kind.__module__ != module.__name__
            if not is_imported and kind not in with_objects and vars(kind).get("name"):
                yield kind()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of this package's objects, file by file, then the names of installed packages' objects."""
        others = [name for name in entry_point_names(self._group) if name not in self.own]
        return (*self.own, *others)

    def __iter__(self) -> Iterator[T]:
        return iter(self.own.values())

    @property
    def with_settings(self) -> Iterator[Named]:
        """Yield the objects that may have settings of their own. For data sets, these include the data formats."""
        return iter(self)

    def allow_code_of(self, name: str, folder: Path) -> str:
        """Allow this process to run the file in a name FILE.py:NAME, because the user has given this name.

        Return the name with an absolute path. Any other name is returned unchanged.

        Args:
          folder: the folder to which relative paths refer.
        """
        return trust_reference(name, folder)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        # Installed packages come last, because the search for them takes milliseconds.
        return name in self.own or parse(name) is not None or name in entry_point_names(self._group)

    def __getitem__(self, name: str) -> T:
        """Return the object of this name.

        Raises:
          UserError: there is no such object, it can't be loaded, or it is not an instance of the registry's class.
        """
        if name in self.own:
            return self.own[name]
        if name not in self._brought:
            self._brought[name] = self._load(name)
        return self._brought[name]

    def code_of(self, name: str) -> Path | None:
        """Return the file of code to which a name FILE:NAME refers; None for any other name."""
        reference = parse(name)
        return reference.file if reference else None

    def check_name(self, name: str) -> str:
        """Return `name`. If it is unknown, raise ValueError with all known names and the page of the documentation."""
        if name not in self:
            raise ValueError(f"{self.unknown(name)}: {self.page}")
        return name

    @property
    def page(self) -> str:
        """The page of the documentation that shows how to write such an object."""
        return self._base.page

    def unknown(self, name: str) -> str:
        """Return a message for an unknown name: the most similar known name, and all known names."""
        hint = did_you_mean(name, self.names)
        if name.endswith(".py"):
            hint = f"name what the file defines, as '{name:.80}:NAME'. "
        return f"{hint}Choose from {', '.join(self.names)}, or your own as path/to/file.py:name"

    def _load(self, name: str) -> T:
        if reference := parse(name):
            try:
                found = load(reference)
            except UserError as error:
                if not is_trusted(reference.file):
                    raise
                raise UserError(f"{self.noun} {error}: {self.page} shows how to write one") from error
        elif name in entry_point_names(self._group):
            found = load_entry_point(self._group, name)
        else:
            raise UserError(f"{self.noun} '{name:.80}': {self.unknown(name)}: {self.page}")
        return self._made(found, name)

    def _made(self, found: Any, name: str) -> T:
        """Return `found` as an object of the registry's class, with `name` as its name."""
        if isinstance(found, type):
            if issubclass(found, self._base):
                try:
                    found = found()
                except TypeError as error:  # e.g. a method that has to be overridden is missing
                    raise UserError(f"{self.noun} '{name}': {one_line(str(error), 300)}: {self.page}") from error
        elif self._wrap and callable(found):
            found = self._wrap(found)
        if not isinstance(found, self._base):
            function = "a function, or " if self._wrap else ""
            raise UserError(
                f"'{name}' is no {self.noun}: it has to be {function}a {_full_name(self._base)}: {self.page}"
            )
        self._check_classes(found, name)
        made = copy(found)  # the object in the user's module keeps its name
        made.name = name
        return made

    def _check_classes(self, made: Named, name: str) -> None:
        """Raise UserError if `Settings`, or a value in `expected_classes`, is not a subclass of the required class."""
        if not isinstance(made.Settings, type) or not issubclass(made.Settings, self.settings):
            base = _full_name(self.settings)
            raise UserError(f"{self.noun} '{name}': its Settings has to be a subclass of {base}: {self.page}")
        for attribute, base_of_value in made.expected_classes().items():
            given = getattr(made, attribute, None)  # a user's class may lack it
            if not isinstance(given, type) or not issubclass(given, base_of_value):
                raise UserError(
                    f"{self.noun} '{name}': its {attribute} is {given!r:.200}, but has to be a subclass of "
                    f"{_full_name(base_of_value)}: {self.page}"
                )


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"
