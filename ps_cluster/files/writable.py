"""Check that results can be written, before the work that produces them begins."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ps_cluster.files.values import Malformed, reason, refuse_address

LONGEST_NAME = 200  # bytes; most systems allow 255, and the temporary name of a file is longer
LONGEST_PATH = 3000  # bytes; most systems allow 4,096, and a run has files below this path


def check_file(path: Path) -> None:
    """Raise Malformed if no file can be written at `path`. Its folders may be missing. Leaves nothing behind."""
    if os.path.isdir(path):
        raise Malformed("is a directory")
    if os.path.exists(path) and not os.path.isfile(path):
        raise Malformed("is not a regular file")
    check_folder(path, path.absolute().parent)


def check_folder(path: Path, folder: Path | None = None) -> None:
    """Raise Malformed if files can't be written into the folder `path`. Missing folders are no obstacle.

    `check_file` calls this with the path of a file, and with the folder of the file as `folder`.
    """
    refuse_address(str(path))
    if "\0" in str(path):
        raise Malformed("has a null character in its name")
    folder = folder or path.absolute()
    try:
        if any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts) or len(os.fsencode(path)) > LONGEST_PATH:
            raise Malformed("is too long a name")
        nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
        with tempfile.TemporaryFile(dir=nearest):  # a look at the permissions would not be enough
            pass
    except Malformed:
        raise
    except NotADirectoryError as error:
        raise Malformed("can't be written: a file is in the way") from error
    except (OSError, ValueError) as error:  # ValueError: the name can't be encoded
        raise Malformed(f"can't be written: {reason(error)}") from error
