"""Open files that another program or user may have prepared, and read them in bounded memory."""

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

from ps_cluster.files.values import Malformed


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, open for reading. A pipe or device is refused without waiting for it.

    Raises OSError if the system refuses or the path is a folder, and Malformed if it is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise Malformed("is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file. Raises what `open_regular` does, and Malformed if it has more than `most_bytes` bytes."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise Malformed(f"has more than {most_bytes:,} bytes")
    return content


def most_memory(size_bytes: int) -> int:
    """Return how much memory reading files of this size may take: 1 GiB plus 20 bytes for each byte in the files."""
    return 2**30 + 20 * size_bytes


@contextlib.contextmanager
def bounded_memory(size_bytes: int) -> Iterator[None]:
    """Let all threads of this process allocate at most `most_memory(size_bytes)` more bytes. Mapped files do not count.

    A compressed file of a kilobyte can hold gigabytes, and the libraries that read such files have no limit. Raises
    Malformed if the block needed more.
    """
    # Arrow's default memory pool would reserve a GiB at its first use. The variable is read if Arrow is imported later.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    arrow = sys.modules.get("pyarrow")
    pool = arrow and arrow.default_memory_pool()
    if arrow:
        arrow.set_memory_pool(arrow.system_memory_pool())
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    import psutil  # here, because most readers do not need it

    most = psutil.Process().memory_info().data + most_memory(size_bytes)
    limits = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    except MemoryError as error:
        raise Malformed(
            f"reading its {size_bytes:,} bytes takes more than {most_memory(size_bytes) / 1e9:.1f} GB of memory, the "
            "limit for this size: if you trust the data, save it without compression"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        if arrow:
            arrow.set_memory_pool(pool)
