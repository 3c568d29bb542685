"""Open files from untrusted writers."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ps_cluster.files.malformed import Malformed
from ps_cluster.files.ownership import trusted


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, open for reading. A pipe or device is refused without waiting for it.

    Raises:
      OSError: the system refused, or it is a folder.
      Malformed: not a regular file, or a link that another user made.
    """
    descriptor = _open(path)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise Malformed("is no regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file of at most `most_bytes` bytes.

    Raises:
      OSError: the system refused.
      Malformed: not a regular file, too large, or a link that another user made.
    """
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise Malformed(f"has more than {most_bytes:,} bytes")
    return content


def _open(path: Path) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    if (user := os.geteuid()) and os.lstat(path).st_uid not in trusted(user):
        raise Malformed("is a link that another user made")
    return os.open(path, flags)
