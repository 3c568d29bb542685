"""Read the source of Python's standard library: text that every machine with Python has."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

from ps_cluster.config.datasets import Contents, DataSet
from ps_cluster.data import texts


class PythonSource(DataSet[texts.TextSettings]):
    """The source of the standard library of the Python that runs this, without its tests."""

    name = "python_source"
    title = "the source of Python's standard library"
    Settings = texts.TextSettings
    recipe = texts.RECIPE

    def read(self, source: Path | None, settings: texts.TextSettings) -> Contents:
        """Return the windows of the text. A note has the digest of all files."""
        files = texts.read_texts(*texts.standard_library_files())
        found = f"{len(files):,} files of Python {platform.python_version()}, SHA-256 {texts.digest(files)[:16]}"
        return texts.contents_of_texts(files, settings, (found,))

    def own_settings(self, settings: texts.TextSettings) -> dict[str, Any]:
        """Return the settings with a hash of the names and sizes of files, which differs for another Python."""
        folder, paths = texts.standard_library_files()
        listed = "".join(f"{path.relative_to(folder)}\0{path.stat().st_size}\n" for path in paths)
        return super().own_settings(settings) | {"library": hashlib.sha256(listed.encode()).hexdigest()}
