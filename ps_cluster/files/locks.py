"""Allow one command at a time in a folder, by locking a file that names the holder of the lock.

The kernel holds the lock (flock), and releases it when the process ends or is killed, so no stale lock is left.
Child processes do not inherit the lock. A command that only checks whether a lock is taken holds it for a moment, so a
command that takes a lock retries for longer than that. Containers that share a folder also share its locks. Whether
machines that share a folder also share its locks depends on the file system. If the file system has no locks, a notice
says so, and the work continues.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.reading import read_bytes
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.files.writing import open_to_write
from ps_cluster.notices import Notify, ignore

LOCK = ".lock"
_USED = ".used"  # the file that processes lock in a folder that they share
_MODE = 0o600  # only for the user, because whoever may read a file may also lock it
SHARERS_END_WITHIN_S = 10.0  # the longest time from SIGKILL to the end of a process that the kernel delays

_MOST_BYTES = 2**16
_MOST_CHARACTERS = 300  # of the holder's command line
_RETRY_S = 0.05
_CHECK_TAKES_S = 0.5  # the longest time that a process holds a lock only to check it
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class InUse(UserError):
    """Raised if another process holds the lock."""


class Lock:
    """A lock file that this process holds until `release`, or until the process ends."""

    def __init__(self, path: Path, what: str, notify: Notify = ignore, *, shared: bool = False):
        """Take the lock. Raises InUse, which names the holder, or OSError if the file can't be created.

        `what`: the locked thing, for messages, e.g. "run directory 'runs/a'". `notify` gets a line if the file system
        has no locks. `shared`: allow other processes that also share the lock.
        """

        def warn(reason: str) -> None:
            notify(f"{what} can't be locked ({reason}): make sure that no other command writes to it")

        self._path = path.absolute()  # because a task changes its working directory
        descriptor = _locked(path, _CHECK_TAKES_S, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, warn)
        if descriptor is None:
            raise InUse(f"{what} is in use by {_holder(path)}: wait until it has ended, or end it")
        self._descriptor = descriptor
        command = one_line(shlex.join(sys.argv), _MOST_CHARACTERS)
        holder = (
            f"'{command}' (pid {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')} on {socket.gethostname()})"
        )
        with contextlib.suppress(OSError):  # on a full disk, the lock works without the holder's name
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, holder.encode(), 0)

    def release(self) -> None:
        """Release the lock. The file is removed first, so that no process reads the name of a former holder.

        The file stays if other processes share the lock.
        """
        if not _is_taken(self._descriptor) and _is_at(self._descriptor, self._path):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


@contextlib.contextmanager
def sole_use(folder: Path, what: str, notify: Notify, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of `folder` during the block. Create a missing folder, and remove it afterwards if it stayed empty.

    `what`: the kind of folder, for the messages, e.g. "run directory". `shared`: allow other commands that also share
    the folder. Raises UserError if another command holds the folder, it belongs to another user (files/untrusted.py), or
    it can't be written.
    """
    whole = folder.absolute()
    missing = [place for place in (whole, *whole.parents) if not os.path.exists(place)]
    try:
        untrusted.refuse_foreign_symlinks(folder, what)
        folder.mkdir(parents=True, exist_ok=True)
        untrusted.check_folder(folder, what, notify)  # now, because another user may just have made the folder
        os.scandir(folder).close()  # raises if the folder is unreadable: then it is unknown whether it is empty
        lock = Lock(folder / LOCK, f"{what} '{folder}'", notify, shared=shared)
    except (NotADirectoryError, FileExistsError) as error:
        raise UserError(f"{what} '{folder}' can't be made: a file is in the way") from error
    except OSError as error:
        raise UserError(f"{what} '{folder}' can't be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # it or a folder above it is not empty
            for place in missing:
                place.rmdir()


def is_held(path: Path) -> bool:
    """Return whether a process holds or shares a lock, without writing anything. Return False if this is unknown.

    `path`: the lock file, or the folder that is locked.
    """
    file = path / LOCK if path.is_dir() else path
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _is_taken(descriptor)  # a process that tries to take the lock at this moment retries
    finally:
        os.close(descriptor)


def share(path: Path) -> None:
    """Hold a shared lock on the file or folder `path` until this process ends.

    If the system refuses the lock, continue without it.
    """
    with contextlib.suppress(OSError):
        _locked(path / _USED if path.is_dir() else path, _CHECK_TAKES_S, fcntl.LOCK_SH)


def wait_for_sharers(path: Path, what: str, within_s: float = SHARERS_END_WITHIN_S) -> None:
    """Wait until no process holds a shared lock on `path`. After `within_s` seconds, raise UserError, naming `what`."""
    if (descriptor := _locked(path, within_s)) is None:
        raise UserError(
            f"{what}: processes of an earlier run are still running after {within_s:g} s: end them, or try again"
        )
    os.close(descriptor)


@contextlib.contextmanager
def sharing_new(folder: Path) -> Iterator[None]:
    """Create a folder, and hold a shared lock on it during the block, even if the folder is moved meanwhile."""
    descriptor = None
    while descriptor is None:
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process removed it as abandoned before it was locked
            descriptor = _locked(folder / _USED, _CHECK_TAKES_S, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Remove a folder if no process holds a shared lock on it. Keep it if the file system has no locks."""
    without_locks: list[str] = []
    with contextlib.suppress(OSError):  # the folder is gone
        if (descriptor := _locked(folder / _USED, 0, warn=without_locks.append)) is not None:
            if not without_locks:
                shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


@contextlib.contextmanager
def locked_for_removal(folder: Path, what: str) -> Iterator[None]:
    """Lock a folder that is going to be removed. Raises InUse, which names `what`, if a process shares its lock."""
    if (descriptor := _locked(folder / _USED, _CHECK_TAKES_S)) is None:
        raise InUse(f"{what} is in use by a run: wait until the run has ended, or end it")
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def briefly_locked(path: Path, within_s: float = 5.0) -> Iterator[None]:
    """Lock the file `path` during a short block. After waiting for `within_s` seconds, continue without the lock."""
    descriptor = _locked(path, within_s)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_empty(folder: Path, besides: str = LOCK) -> bool:
    """Return whether a folder does not exist, or contains nothing but the lock file and the file `besides`."""
    return not folder.is_dir() or all(path.name in (LOCK, besides) for path in folder.iterdir())


def _locked(
    path: Path, within_s: float, kind: int = fcntl.LOCK_EX, warn: Callable[[str], None] = lambda reason: None
) -> int | None:
    """Return a descriptor of the locked file; None if other processes hold the lock for longer than `within_s`.

    The file is created if it is missing. If the last holder removes the file just after this process has opened it, the
    file is opened again. `warn` gets the reason if the file system has no locks; the file then counts as locked.
    """
    deadline = time.monotonic() + within_s
    while True:
        descriptor = open_to_write(path, os.O_RDWR | os.O_CREAT, _MODE)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _NO_LOCKS:
                warn(error.strerror or str(error))
                return descriptor
            os.close(descriptor)
            raise
        else:
            if _is_at(descriptor, path):
                return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline:
            return None
        time.sleep(_RETRY_S)


def _is_taken(descriptor: int) -> bool:
    """Try to take the lock. Return True if other processes hold or share it.

    Otherwise return False: this descriptor holds the lock from now on, or the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the file at `path`, which may have been removed and created again."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """Return what the holder of a lock wrote about itself, or "another command" if it is just starting or ending."""
    try:
        holder = read_bytes(path, _MOST_BYTES).decode(errors="replace")
    except (OSError, Malformed):
        holder = ""
    return one_line(holder) or "another command"
