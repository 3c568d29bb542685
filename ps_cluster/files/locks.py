"""Allow one command at a time in a folder, by a locked file that names the holder.

The kernel holds the lock (flock). It ends with the process, however that ends, so no stale lock is left. Programs that
the process starts do not inherit it. Only the owner may open a lock file: whoever may read a file may lock it, for ever.
A command that only looks whether a lock is taken holds it for a moment, so whoever takes one tries for longer than that.
Containers that share a folder share the lock; whether machines do depends on the file system. On
a file system without locks a notice says so, and the work goes on.
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
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.json_files import read_json
from ps_cluster.files.untrusted import Notify
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import is_at, open_to_write, write_whole

LOCK = ".lock"
_USED = ".used"  # in a folder that processes share
_MODE = 0o600
MOMENT_S = 5.0
SHARERS_END_WITHIN_S = 10.0  # seconds from SIGKILL to the end of a process that the kernel delays

_MOST_BYTES = 2**16
_MOST_CHARACTERS = 300  # of the holder's command line
_TRIES = 100
_LOOK_EVERY_S = 0.05
_LOOKING_TAKES_S = 0.5  # at most, also where a looking process is not scheduled at once
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class InUse(UserError):
    """Another process holds the lock."""


class Holder(BaseModel):
    """The holder of a lock, read from the file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pid: int
    host: str
    since: str
    command: str

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return one_line(f"'{self.command}' (pid {self.pid}{where}, since {self.since})")


class Lock:
    """A lock file that this process holds until `release`, or until it ends."""

    def __init__(self, path: Path, what: str, notify: Notify = lambda line: None, *, shared: bool = False):
        """Take the lock.

        Args:
          what: the locked thing, for messages: "run directory 'runs/a'".
          notify: gets a line if the file system has no locks.
          shared: with others that share it.
        Raises:
          InUse: another process holds it; the message names it.
          OSError: the file can't be made.
        """
        self._path = path.absolute()  # absolute, since a task works in a folder of its own
        self._descriptor = _locked(path, what, notify, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        ourselves = Holder(
            pid=os.getpid(),
            host=socket.gethostname(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=one_line(shlex.join(sys.argv), _MOST_CHARACTERS),
        )
        with contextlib.suppress(OSError):  # on a full disk the lock holds without a name
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, ourselves.model_dump_json().encode(), 0)

    def release(self) -> None:
        """Remove the file while it is still locked, so that no process reads the name of a former holder.

        Others that share it keep it.
        """
        if self._is_last() and is_at(self._descriptor, self._path):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _is_last(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # no locks in this file system
            pass
        return True


@contextlib.contextmanager
def sole_use(folder: Path, what: str, notify: Notify, *, shared: bool = False) -> Iterator[None]:
    """Hold `folder` during the block. Make it if missing; remove it afterwards if it stayed empty.

    Args:
      what: the kind of folder, for the messages: "run directory".
      notify: gets a line for each danger that does not stop the work.
      shared: with other commands that share it; those that do not are kept out.
    Raises:
      UserError: another command holds it, it belongs to another user (files/untrusted.py), or it can't be written.
    """
    whole = folder.absolute()
    missing = [place for place in (whole, *whole.parents) if not os.path.exists(place)]
    try:
        untrusted.check_way(folder, what)
        folder.mkdir(parents=True, exist_ok=True)
        untrusted.check_folder(folder, what, notify)
        os.scandir(folder).close()  # raises if the folder is unreadable: then it can't be called empty
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
    """Return whether a process holds or shares the lock `path`, or that of the folder `path`; False if it can't be asked.

    Nothing is written.
    """
    try:
        descriptor = os.open(
            path / LOCK if path.is_dir() else path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return False
    try:
        # For a moment only: whoever takes the lock just then tries again.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks in this file system
        return False
    finally:
        os.close(descriptor)
    return False


def share(path: Path) -> None:
    """Share the lock `path`, or a folder, with other processes until this one ends. If the system refuses, none waits.

    A folder is kept from being removed (`to_remove`).
    """
    with contextlib.suppress(OSError):
        _wait_for(_opened(path / _USED if path.is_dir() else path), _LOOKING_TAKES_S, fcntl.LOCK_SH)


def wait_for_sharers(path: Path, what: str, within_s: float = SHARERS_END_WITHIN_S) -> None:
    """Return when no process shares `path` any more. Raises UserError if one still does after `within_s`."""
    with os.fdopen(_opened(path)) as file:
        if not _wait_for(file.fileno(), within_s):
            raise UserError(f"{what}: processes of before have not ended within {within_s:g} s: end them, or try again")


@contextlib.contextmanager
def sharing_new(folder: Path) -> Iterator[None]:
    """Make a folder and share it during the block, as `share` does, wherever it is moved to meanwhile."""
    for _ in range(_TRIES):
        folder.mkdir()
        with contextlib.suppress(FileNotFoundError):  # taken for abandoned before it was locked
            descriptor = _opened(folder / _USED)
            with contextlib.suppress(OSError):  # no locks in this file system
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if is_at(descriptor, folder / _USED):
                break
            os.close(descriptor)
    else:
        raise InUse(f"'{folder}' is removed by others as soon as it is made: try again")
    try:
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Remove a folder that no process shares. It stays where the file system has no locks: nobody can tell there."""
    with contextlib.suppress(OSError):  # it is gone, or shared
        descriptor = _opened(folder / _USED)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def to_remove(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder that is to be removed. Raises InUse, which names `what`, while processes share it."""
    with os.fdopen(_opened(folder / _USED)) as file:
        if not _wait_for(file.fileno(), _LOOKING_TAKES_S):
            raise InUse(f"{what} is in use by a run: wait until it has ended, or end it")
        yield


@contextlib.contextmanager
def in_turn(path: Path, within_s: float = MOMENT_S) -> Iterator[None]:
    """Hold `path` during a short block. Waits at most `within_s` for the holder, then goes on without the lock."""
    with os.fdopen(_opened(path)) as file:
        _wait_for(file.fileno(), within_s)
        yield


def is_empty(folder: Path, besides: str = LOCK) -> bool:
    """Return whether a folder contains nothing but the lock and `besides`, or does not exist."""
    return not folder.is_dir() or all(path.name in (LOCK, besides) for path in folder.iterdir())


def _locked(path: Path, what: str, notify: Notify, kind: int) -> int:
    """Return a descriptor of the locked file. Its last holder may remove the file between opening and locking."""
    deadline = time.monotonic() + _LOOKING_TAKES_S
    for _ in range(_TRIES):
        descriptor = _opened(path)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            if time.monotonic() < deadline:
                time.sleep(_LOOK_EVERY_S)
                continue
            raise InUse(f"{what} is in use by {_holder(path)}: wait until it has ended, or end it") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
            notify(f"{what} can't be locked here ({error.strerror}): see to it that no other command writes there")
            return descriptor
        if is_at(descriptor, path):
            return descriptor
        os.close(descriptor)
    raise InUse(f"{what} is taken and left by others all the time: try again")


def _holder(path: Path) -> str:
    try:
        return str(read_json(path, Holder, _MOST_BYTES))
    except (OSError, UserError):  # the holder is just starting or ending
        return "another command"


def _opened(path: Path) -> int:
    """Return a descriptor of a lock file. It is made if it is missing, also where an earlier version made it readable."""
    descriptor = open_to_write(path, os.O_RDWR | os.O_CREAT)
    with contextlib.suppress(OSError):  # root may lock what belongs to others; a file system without modes
        os.fchmod(descriptor, _MODE)
    return descriptor


def _wait_for(descriptor: int, within_s: float, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file. Return False if others hold it for longer than `within_s`, True at once where there are no locks."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_EVERY_S)
        except OSError:
            return True
        else:
            return True


# Claim a folder for one piece of work, whose plan is a file in it: the same command goes on, another one is refused.


def check_unclaimed(output: Path, plan: str, noun: str, besides: str = LOCK) -> None:
    """Raise UserError where a folder holds something, but no plan.

    Args:
      plan: the name of its file. noun: of the work, e.g. "comparison". besides: a name that may be there already.
    """
    if not (output / plan).is_file() and not is_empty(output, besides=besides):
        raise UserError(f"--output: '{output}' is not empty and holds no {noun}: choose another")


def claim(output: Path, plan: str, content: str, noun: str, *, besides: str = LOCK) -> None:
    """Write the plan of the work into its folder, if it has none or this one.

    Args:
      output: the caller holds its lock (files/locks.py).
      plan, noun, besides: as for `check_unclaimed`.
    Raises:
      UserError: the folder holds another plan, or something else, or can't be written.
    """
    file = output / plan
    try:
        if file.is_file():
            untrusted.refuse_foreign(file)
        if file.is_file() and file.read_bytes() != content.encode():
            raise UserError(f"--output: '{output}' holds another {noun}: choose another, or remove it")
        check_unclaimed(output, plan, noun, besides)
        write_whole(file, content)
    except OSError as error:
        raise UserError(f"--output: '{output}' can't be written: {error.strerror}") from error
