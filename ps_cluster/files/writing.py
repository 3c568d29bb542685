"""Ask before each rename and removal whether this process may still write.

A process has one fence, set once. A task that leads a run sets its claim (runs/messages.py); all other processes have
none. It is one for the whole process, so that no function that renames or removes a file can leave it out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from ps_cluster.files.untrusted import trusted
from ps_cluster.files.values import Malformed, refuse_address


def _unchecked() -> None:
    """Let every change pass."""


_check: Callable[[], None] = _unchecked


def set_fence(check: Callable[[], None] | None) -> None:
    """Call `check` before each rename and removal from now on; it raises where nothing may be changed any more.

    None removes the fence.
    """
    global _check
    _check = check or _unchecked


def check() -> None:
    """Raise the fence's error where this process may not change files any more."""
    _check()


# Write files safely where others may write too: never through a link, never half a file.
#
# A file that others read whole is written beside its place and renamed. Its temporary name is random. The writer keeps it
# locked, so an unlocked one was left by a killed writer. The name alone proves nothing.

_MODE = 0o644
_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # a pipe is refused without waiting for it
_TRIES = 100


def write_whole(path: Path, content: str | bytes, *, lasting: bool = True) -> None:
    """Write beside `path` and rename: readers see the old or the new file, never a part.

    Args:
      lasting: flush it to the disk first. A file that is replaced twice a second need not survive the machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with create_beside(path, lasting=lasting) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, like `write_whole`."""
    write_whole(path, json.dumps(value, indent=1) + "\n")


@contextlib.contextmanager
def create_beside(path: Path, encoding: str | None = None, *, lasting: bool = True) -> Iterator[IO[Any]]:
    """Yield a new file that becomes `path` if the block ends well, and is removed otherwise.

    Args:
      encoding: of a text file; None for a file of bytes.
      lasting: as for `write_whole`.
    """
    beside, descriptor = _new_beside(path)
    try:
        with os.fdopen(descriptor, "w" if encoding else "wb", encoding=encoding) as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(descriptor)
            check()
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield a new folder that becomes `path`, missing or empty, if the block ends well, and is removed otherwise."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    beside.mkdir()
    try:
        yield beside
        check()
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a file, if it is there and this process may (files/writing.py)."""
    check()
    path.unlink(missing_ok=True)


def remove_leftovers(directory: Path, pattern: str) -> None:
    """Remove the files of killed writers that fit `pattern`."""
    for left_over in directory.glob(f".{pattern}.*.tmp"):
        with contextlib.suppress(OSError):  # locked by a writer, gone, or not ours
            descriptor = os.open(left_over, os.O_WRONLY | _SAFELY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left_over.unlink()
            finally:
                os.close(descriptor)


def open_append(path: Path) -> BinaryIO:
    """Open a file for appending; make it if missing. Errors as in `open_to_write`."""
    return os.fdopen(open_to_write(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def open_to_write(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file, opened with `flags` and not inherited by other programs.

    Raises:
      OSError: the system refuses; or the file is a link or not a regular file, has a second hard link, or belongs to
        another user. Root may write to files of others, and files of root are nobody else's.
    """
    try:
        descriptor = os.open(path, flags | _SAFELY, _MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refusal(path, "it is a link, and nothing is written through one") from error
        raise
    if reason := _why_not(os.fstat(descriptor)):
        os.close(descriptor)
        raise _refusal(path, reason)
    return descriptor


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at `path`: it may have been removed and made anew."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _why_not(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_nlink > 1:
        return "it has another name elsewhere (a hard link): copy it"
    if (user := os.geteuid()) and status.st_uid not in trusted(user):
        return f"it belongs to another user (uid {status.st_uid})"
    return None


def _refusal(path: Path, reason: str) -> OSError:
    return PermissionError(errno.EPERM, reason, str(path))


def _new_beside(path: Path) -> tuple[Path, int]:
    """Return a new, locked file beside `path`, and its descriptor."""
    for _ in range(_TRIES):
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        descriptor = open_to_write(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        except OSError:  # no locks in this file system: others can't lock it either, so they leave it alone
            is_ours = True
        else:
            is_ours = is_at(descriptor, beside)  # not if `remove_leftovers` took it for a killed writer's
        if is_ours:
            return beside, descriptor
        os.close(descriptor)
    raise _refusal(path, "files beside it are removed as soon as they are made")


# Check, before any work is done, that its result can be written.

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
    refuse_address(str(path))
    if "\0" in str(path):
        raise Malformed("has a null character in its name")
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
