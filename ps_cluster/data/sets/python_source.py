"""The source of Python's standard library: text that is on every machine that runs this."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

from ps_cluster.config.datasets import Contents, DataSet, DataSettings
from ps_cluster.data import texts


class PythonSource(DataSet):
    """The source of the standard library of the Python that runs this, without its tests."""

    name = "python_source"
    title = "the source of Python's standard library"
    Settings = texts.TextSettings
    recipe = texts.RECIPE

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Return its windows; the notes have the digest of what was found."""
        assert isinstance(settings, texts.TextSettings)
        files = texts.read_texts(*texts.standard_library_files())
        found = f"{len(files):,} files of Python {platform.python_version()}, SHA-256 {texts.digest(files)[:16]}"
        return texts.contents_of_texts(files, settings, (found,))

    def own_settings(self, settings: DataSettings) -> dict[str, Any]:
        """Return the settings, and what was found: another Python has another library, which is packed by itself."""
        folder, paths = texts.standard_library_files()
        listed = "".join(f"{path.relative_to(folder)}\0{path.stat().st_size}\n" for path in paths)
        return super().own_settings(settings) | {"library": hashlib.sha256(listed.encode()).hexdigest()}
