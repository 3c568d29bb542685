"""Write files so that readers see the whole file or none. No file is written through a link.

A file that other processes read as a whole is written under a random temporary name and then renamed. The writer keeps
the temporary file locked, so an unlocked temporary file was left behind by a writer that was killed.

A process can have one fence: a function that is called before each rename and removal, and raises an error if this
process may no longer change files. The task that leads a run sets a fence that fails when a newer leader has taken
over (runs/leaders.py). No other process has a fence. The fence is global to the process, so that no caller can forget
to pass it on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # a pipe is refused without waiting for it

_fence: Callable[[], None] | None = None


def set_fence(fence: Callable[[], None] | None) -> None:
    """Call `fence` before each rename and removal of a file from now on. None removes the present fence.

    `fence` raises an error if this process may no longer change files.
    """
    global _fence
    _fence = fence


def check_fence() -> None:
    """Call the fence of this process, see `set_fence`. It raises `Superseded` if a newer leader has taken over.

    Only a leader has a fence. Its process sets it before the training begins (`main` in launch/task.py). On several
    machines the command `task` sets one too when it claims the run, and removes it at its end (launch/one_task.py).
    """
    if _fence is not None:
        _fence()


def write_whole(path: Path, content: str | bytes, *, lasting: bool = True) -> None:
    """Write a temporary file and rename it to `path`, so that readers see the old file or the new one, never a part.

    `lasting`: flush the file to the disk first, so that it survives a power failure. Set False for a file that is
    replaced very often.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with create_beside(path, lasting=lasting) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, in the same way as `write_whole`."""
    write_whole(path, json.dumps(value, indent=1) + "\n")


@contextlib.contextmanager
def create_beside(path: Path, *, lasting: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file that is renamed to `path` if the block ends without an error, and removed otherwise.

    `lasting`: as for `write_whole`.
    """
    temporary = _temporary_name(path)
    descriptor = open_to_write(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with contextlib.suppress(OSError):  # if the file system has no locks, no process removes leftovers either
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(descriptor)
            check_fence()
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def create_text_beside(path: Path) -> Iterator[TextIO]:
    """Yield a new file of UTF-8 text, like `create_beside`."""
    with create_beside(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8")
        yield text
        text.detach()  # writes what is buffered, and leaves the file open


@contextlib.contextmanager
def path_beside(path: Path) -> Iterator[Path]:
    """Yield the path of a file that the block has to write. It is renamed to `path` if the block ends without an error.

    Otherwise it is removed. Use this for libraries that open the file themselves and choose its format by its suffix.
    The file has the same suffix as `path`. It is not locked, so `remove_leftovers` ignores it.
    """
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        check_fence()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield a new folder that is renamed to `path` after the block, or removed if the block raises an error.

    `path` has to be missing or an empty folder.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        check_fence()
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def remove(path: Path) -> None:
    """Remove a file if it is there. Raises `Superseded` if a newer leader has taken over (`check_fence`)."""
    check_fence()
    path.unlink(missing_ok=True)


def remove_leftovers(directory: Path, pattern: str) -> None:
    """Remove temporary files that killed writers left in `directory`.

    `pattern`: a glob pattern of the final names of these files.
    """
    for leftover in directory.glob(f".{pattern}.*.tmp"):
        with contextlib.suppress(OSError):  # its writer holds the lock, or the file is gone
            descriptor = os.open(leftover, os.O_WRONLY | _SAFELY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftover.unlink()
            finally:
                os.close(descriptor)


def open_append(path: Path) -> BinaryIO:
    """Open a file for appending; create it if it is missing. Raises the errors of `open_to_write`."""
    return os.fdopen(open_to_write(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def open_to_write(path: Path, flags: int, mode: int = 0o644) -> int:
    """Return a descriptor of a regular file, opened with `flags`. Child processes do not inherit it.

    Raises OSError if the system refuses, or `path` is a link or not a regular file.
    """
    try:
        descriptor = os.open(path, flags | _SAFELY, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermissionError(
                errno.EPERM, "it is a link, and files are never written through a link", str(path)
            ) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is not a regular file", str(path))
    return descriptor
