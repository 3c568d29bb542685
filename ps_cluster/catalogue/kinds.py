"""The things of one kind by name: what the package has, what installed packages add, and what a file of the user's defines."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Generic, TypeVar

from ps_cluster.catalogue import doors
from ps_cluster.errors import UserError

T = TypeVar("T")


class Kinds(Generic[T]):
    """All things of one kind.

    The package's own are the objects of class `base` in the module `home`, or in the modules of that package: a new file
    there is found without being named anywhere else.
    """

    def __init__(
        self, noun: str, base: type[Any], home: str, group: str, wrap: Callable[[Any], Any] = lambda found: found
    ):
        """
        Args:
          noun: what one is called in messages, e.g. "optimizer rule".
          base: their class; each object has a `name`.
          home: the module or package that defines the package's own.
          group: the entry points of installed packages that add others, e.g. "ps_cluster.modes".
          wrap: makes an object of the kind from what a file or package brings, e.g. from a function.
        """
        self.noun = noun
        self._base = base
        self._home = home
        self._group = group
        self._wrap = wrap
        self._brought: dict[str, T] = {}

    @property
    def settings(self) -> Any:
        """The settings that all of this kind have: a `Section`."""
        return self._base.Settings  # type: ignore[attr-defined]

    @cached_property
    def own(self) -> dict[str, T]:
        """The package's own, by name."""
        found: dict[str, T] = {}
        for module in self._modules():
            for thing in vars(module).values():
                if isinstance(thing, self._base):
                    found[thing.name] = thing  # type: ignore[attr-defined]
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The package's own, file by file in the order of their definition, and those of installed packages."""
        others = [name for name in doors.entry_point_names(self._group) if name not in self.own]
        return (*self.own, *others)

    def __iter__(self) -> Iterator[T]:
        return iter(self.own.values())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.names or doors.parse(name) is not None)

    def __getitem__(self, name: str) -> T:
        """Return the one of this name.

        Raises:
          UserError: there is none, or what the name leads to can't be loaded or is no such thing.
        """
        if name in self.own:
            return self.own[name]
        if name not in self._brought:
            self._brought[name] = self._load(name)
        return self._brought[name]

    def check_name(self, name: str) -> str:
        """Return `name`. Raises ValueError, with what there is, for one that is not known."""
        if name not in self:
            raise ValueError(self.unknown(name))
        return name

    def unknown(self, name: str) -> str:
        """Say what there is in place of `name`."""
        near = get_close_matches(name, self.names, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return f"{hint}There are {', '.join(self.names)}, and yours as path/to/file.py:name"

    def _load(self, name: str) -> T:
        if reference := doors.parse(name):
            found = doors.load(reference)
        elif name in doors.entry_point_names(self._group):
            found = doors.load_entry_point(self._group, name)
        else:
            raise UserError(f"{self.noun} '{name:.80}': {self.unknown(name)}")
        return self._made(found, name)

    def _made(self, found: Any, name: str) -> T:
        """Return an object of the kind under the name that it is known by here."""
        is_class = isinstance(found, type) and issubclass(found, self._base)
        found = found() if is_class else self._wrap(found)
        if not isinstance(found, self._base):
            raise UserError(f"'{name}' is no {self.noun}: it has to be a {self._base.__module__}.{self._base.__name__}")
        found.name = name  # type: ignore[attr-defined]
        return found

    def _modules(self) -> Iterator[Any]:
        module = importlib.import_module(self._home)
        yield module
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield importlib.import_module(f"{self._home}.{found.name}")
