"""Read the source of Python's standard library: text that every machine with Python has."""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from pathlib import Path
from typing import Any

from ps_cluster.config.datasets import Contents, DataSet
from ps_cluster.data import texts
from ps_cluster.data.folders import files_below

# Folders inside the standard library's folder that do not belong to the library, and the library's tests, which are
# more than half of it and unlike other programs.
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})


class PythonSource(DataSet[texts.TextSettings]):
    """The source of the running Python's standard library, without its tests."""

    name = "python_source"
    title = "the source of Python's standard library"
    Settings = texts.TextSettings
    recipe = texts.RECIPE

    def read(self, source: Path | None, settings: texts.TextSettings) -> Contents:
        files = texts.read_texts(*_library_files())
        note = f"{len(files):,} files of Python {platform.python_version()}"
        return texts.contents_of_texts(files, settings, (note,))

    def own_settings(self, settings: texts.TextSettings) -> dict[str, Any]:
        """Return the settings, and a hash of the library's file names and sizes.

        With the hash, each version of Python gets its own packed copy.
        """
        folder, paths = _library_files()
        listed = "".join(f"{path.relative_to(folder)}\0{path.stat().st_size}\n" for path in paths)
        return super().own_settings(settings) | {"library": hashlib.sha256(listed.encode()).hexdigest()}


def _library_files() -> tuple[Path, list[Path]]:
    """Return the folder of Python's standard library, and its source files."""
    folder = Path(sysconfig.get_path("stdlib"))
    return folder, [path for path in files_below(folder, _LEFT_OUT) if path.suffix == ".py" and path.is_file()]
