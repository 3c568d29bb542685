"""Open files from untrusted writers, and read them in bounded memory."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ps_cluster.files.ownership import trusted
from ps_cluster.files.values import Malformed


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


def most_memory(size_bytes: int) -> int:
    """Return how many bytes of memory may be taken to read files of this size: 1 GiB, and 20 for each of theirs."""
    return 2**30 + 20 * size_bytes


@contextlib.contextmanager
def bounded_memory(size_bytes: int) -> Iterator[None]:
    """Let this process take `most_memory(size_bytes)` more than it has, in all its threads. Mapped files don't count.

    A compressed file of a kilobyte can hold gigabytes, and no library that reads one has a limit of its own.

    Raises:
      Malformed: the block wanted more.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own would reserve a GiB at its first use
    if pyarrow := sys.modules.get("pyarrow"):  # it has read the variable already, e.g. where pandas has imported it
        pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    import psutil  # not where only files of this package are read

    most = psutil.Process().memory_info().data + most_memory(size_bytes)
    limits = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    except MemoryError as error:
        raise Malformed(
            f"it takes more than {most_memory(size_bytes) / 1e9:.1f} GB of memory to read, and has {size_bytes:,} bytes: "
            "if you trust it, save it without compression"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


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
