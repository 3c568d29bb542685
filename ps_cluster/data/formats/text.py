"""Read the data format `text`: a file of text, or a folder of such files."""

from __future__ import annotations

import os
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field

from ps_cluster.config.datasets import Contents
from ps_cluster.data import texts
from ps_cluster.data.folders import files_below, files_in, not_read
from ps_cluster.data.formats import PathFormat
from ps_cluster.files.values import Malformed

_ENDINGS = (".txt", ".md")


class OwnTextSettings(texts.TextSettings):
    """Settings of a data set of a user's own text."""

    files: tuple[str, ...] = Field(
        default=tuple(f"*{ending}" for ending in _ENDINGS), strict=False, min_length=1, max_length=100,
        description="Patterns for the names of the files that are read from a folder.",
    )  # fmt: skip


class TextFormat(PathFormat[OwnTextSettings]):
    name = "text"
    looks_for = f"a file of text ({', '.join(_ENDINGS)}), or a folder of such files"
    endings = _ENDINGS
    Settings = OwnTextSettings
    recipe = texts.RECIPE

    def recognises(self, path: Path) -> bool:
        """Return whether `path` is a file of text, or a folder with only such files at its top.

        A folder with a README next to pictures is therefore not recognised. To read any folder as text, set `dataset`
        to `text:FOLDER`.
        """
        return holds_only_texts(path) if os.path.isdir(path) else super().recognises(path)

    def read(self, source: Path | None, settings: OwnTextSettings) -> Contents:
        if not os.path.isdir(self.path):
            return texts.contents_of_texts(texts.read_texts(self.path.parent, [self.path]), settings)
        paths: list[Path] = []
        others: list[Path] = []
        for path in files_below(self.path):
            fits = path.is_file() and any(fnmatchcase(path.name, pattern) for pattern in settings.files)
            (paths if fits else others).append(path)
        if not paths:
            raise Malformed(
                f"no file in it matches {' or '.join(settings.files)}: set data.files to patterns that match its files"
            )
        contents = texts.contents_of_texts(texts.read_texts(self.path, paths), settings)
        left = not_read(others, self.path, f"not called {' or '.join(settings.files)}; to read others, set data.files")
        return replace(contents, notes=(*contents.notes, *left))


def holds_only_texts(folder: Path) -> bool:
    """Return whether there are files at the top of a folder, and all of them are texts."""
    names = files_in(folder)
    return bool(names) and all(name.lower().endswith(_ENDINGS) for name in names)
