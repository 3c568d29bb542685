"""Find the files that a pattern such as `data/*.parquet` matches."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def is_pattern(path: Path) -> bool:
    """Return whether a path is a pattern with wildcards. The path of an existing file, e.g. `a[1].csv`, is not."""
    return glob.has_magic(str(path)) and not os.path.lexists(path)


def matches(pattern: Path) -> list[Path]:
    """Return the sorted files that a pattern matches, without hidden ones. `**` matches any number of folders."""
    found = (Path(name) for name in glob.iglob(str(pattern), recursive=True))
    return sorted(dict.fromkeys(path for path in found if path.is_file()))


def folder_of(pattern: Path) -> Path:
    """Return the lowest folder that contains all matches of a pattern."""
    return next(folder for folder in pattern.parents if not glob.has_magic(str(folder)))
