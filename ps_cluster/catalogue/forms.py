"""The forms of data that are read from a path, without code of the user's.

`--dataset PATH` is recognised once, where the user has written it. From then on the data set's name is `FORM:/the/path`,
so nobody has to look at the disk to know which settings it has. The forms are in `ps_cluster/data/forms/`, one file each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.errors import UserError

if TYPE_CHECKING:
    from ps_cluster.catalogue.datasets import DataSet, DataSettings


class Form:
    """A form of data. Subclass it, and write both methods.

    Attributes:
      name: its name; users may write `name:path` to choose it.
      looks_for: in words, what a path must be.
      endings: of names of files that have this form.
      Settings: the class of the section `data` of its data sets.
    """

    name = ""
    looks_for = ""
    endings: tuple[str, ...] = ()
    Settings: type[DataSettings]

    def recognises(self, path: Path) -> bool:
        """Return whether a file or folder has this form. Looks at names, and at the beginning of a file at most."""
        return path.suffix.lower() in self.endings and os.path.isfile(path)

    def dataset(self, path: Path) -> DataSet:
        """Return the data set at a path, which need not exist. `read` refuses what is damaged."""
        raise NotImplementedError


FORMS: Kinds[Form] = Kinds("form of data", Form, "ps_cluster.data.forms", "ps_cluster.forms")


class Place(NamedTuple):
    """A path in a form of data."""

    form: Form
    path: Path

    def __str__(self) -> str:
        return f"{self.form.name}:{self.path}"


def parse(text: str) -> Place | None:
    """Return the place that `FORM:PATH` names, None for any other text."""
    form, _, path = text.partition(":")
    return Place(FORMS[form], Path(path)) if path and form.isidentifier() and form in FORMS else None


def named_by_user(text: str, folder: Path) -> str:
    """Return `FORM:/the/path` for a path that the user has written, as seen from `folder`; any other text as it is.

    Raises:
      UserError: there is nothing at the path, or it has no known form.
    """
    if place := parse(text):
        return str(place._replace(path=_absolute(place.path, folder)))
    return str(_recognised(_absolute(Path(text), folder))) if _is_path(text, folder) else text


def _is_path(text: str, folder: Path) -> bool:
    if "/" in text or os.path.exists(folder / text):
        return True
    ending = Path(text).suffix.lower()  # without one, installed forms need not be loaded
    return bool(ending) and any(ending in form.endings for form in _all_forms())


def _all_forms() -> Iterator[Form]:
    """Yield the package's own forms, then those of installed packages."""
    return (FORMS[name] for name in FORMS.names)


def _absolute(path: Path, folder: Path) -> Path:
    return Path(os.path.normpath(folder.absolute() / os.path.expanduser(path)))


def _recognised(path: Path) -> Place:
    if not os.path.exists(path):
        raise UserError(f"dataset: there is no '{path}': correct the path; docs/own-data.md shows what it may lead to")
    for form in _all_forms():
        if form.recognises(path):
            return Place(form, path)
    code = f"to run code, name what it defines, e.g. '{path}:load'; " if path.suffix == ".py" else ""
    known = "; ".join(f"{form.name}: {form.looks_for}" for form in _all_forms())
    raise UserError(f"dataset: '{path}' has no form that is known. {code}{known}. docs/own-data.md shows each")
