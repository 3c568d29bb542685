"""Check, before any work is done, that its result can be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ps_cluster.files.malformed import Malformed

LONGEST_NAME = 200  # bytes; most systems allow 255, and a temporary name is longer
LONGEST_PATH = 3000  # bytes; most systems allow 4,096, and a run's files are below it


def check_file(path: Path) -> None:
    """Raise Malformed if no file can be written at `path`. Its folders may be missing. Leaves nothing behind."""
    try:
        _check_names(path)
        if path.is_dir():
            raise Malformed("is a directory")
        if path.exists() and not path.is_file():
            raise Malformed("is no regular file")
        _check_folder(path.absolute().parent)
    except (OSError, ValueError) as error:
        raise _told(error) from error


def check_folder(path: Path) -> None:
    """Raise Malformed if files can't be written into `path`, a folder that may be missing. Leaves nothing behind."""
    try:
        _check_names(path)
        _check_folder(path.absolute())
    except (OSError, ValueError) as error:
        raise _told(error) from error


def _check_names(path: Path) -> None:
    if any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts) or len(os.fsencode(path)) > LONGEST_PATH:
        raise Malformed("is too long a name")


def _check_folder(folder: Path) -> None:
    """Make an unnamed file in the nearest existing folder: its permissions alone prove nothing."""
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    with tempfile.TemporaryFile(dir=nearest):
        pass


def _told(error: OSError | ValueError) -> Malformed:
    if isinstance(error, Malformed):
        return error
    if isinstance(error, NotADirectoryError):
        return Malformed("can't be written: a file is in the way")
    return Malformed(f"can't be written: {getattr(error, 'strerror', None) or error}")
