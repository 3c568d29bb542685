"""Judge and read files that another program or user may have prepared: whose they are, what they are, how much they hold.

Refused is what another user could have prepared: a folder of another user, or a path through another user's link.
Reported is what may be wrong: other users may write to the folder (common for volumes of containers), or root works in
a user's folder. Root's files are trusted: root can do everything anyway. What is read is regular, and bounded in memory.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import resource
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed

Notify = Callable[[str], None]
"""Called with one line for a person to read."""


@contextlib.contextmanager
def writing_alone() -> Iterator[None]:
    """Let nobody else write to files that are made in the block, as in a command of the command line."""
    before = os.umask(0o022)
    os.umask(before | 0o022)
    try:
        yield
    finally:
        os.umask(before)


def unknown_owners(
    uid_map: Path = Path("/proc/self/uid_map"), overflow: Path = Path("/proc/sys/kernel/overflowuid")
) -> frozenset[int]:
    """Return the id that stands for all users unknown to this user namespace, outer root included; empty outside one.

    A task in the private network of its run is in a user namespace and sees root's files with that id. The launcher is
    in none, and has checked the run directory before.
    """
    try:
        whole = uid_map.read_text().split() == ["0", "0", str(2**32 - 1)]
        return frozenset() if whole else frozenset({int(overflow.read_text())})
    except (OSError, ValueError):
        return frozenset()


_UNKNOWN = unknown_owners()


class Foreign(UserError):
    """A file or folder of another user, or one reached through another user's link."""


def check_folder(folder: Path, what: str, notify: Notify, *, user: int | None = None) -> None:
    """Refuse a folder of another user; report where others may write. For a missing folder only the path is checked.

    Args:
      what: the kind of folder, for the message: "run directory".
      notify: gets one line for each report.
      user: id of the user who works in it; None: that of this process.
    Raises:
      Foreign: it belongs to another user, or the path to it leads through another user's link.
    """
    user = os.geteuid() if user is None else user
    check_way(folder, what, user=user)
    if os.path.exists(folder):
        owner = os.stat(folder).st_uid
        if is_foreign(folder, user=user):
            raise Foreign(
                f"{what} '{folder}' belongs to {name_of(owner)}, who could change what lies in it: choose another"
            )
        if owner not in trusted(user):
            notify(
                f"{what} '{folder}' belongs to {name_of(owner)} and is used as root: what is made in it belongs to root"
            )
    for line in _open_to_others(Path(os.path.realpath(folder))):
        notify(f"{what} '{folder}': {line}")


def check_way(folder: Path, what: str, *, user: int | None = None) -> None:
    """Refuse a folder whose path leads through another user's link, before anything is made there."""
    user = os.geteuid() if user is None else user
    for link in _links(folder.absolute(), set()):
        owner = os.lstat(link).st_uid
        if owner not in trusted(user):
            raise Foreign(
                f"{what} '{folder}' is reached through '{link}', a link that {name_of(owner)} made: "
                "name the folder itself, or choose another"
            )


def is_foreign(path: Path, *, user: int | None = None) -> bool:
    """Return whether `path` belongs to an untrusted user or is such a user's link. For root: never."""
    user = os.geteuid() if user is None else user
    return user != 0 and not {os.stat(path).st_uid, os.lstat(path).st_uid} <= trusted(user)


def trusted(user: int) -> frozenset[int]:
    """Return the owners that `user` trusts: the user and root."""
    return _UNKNOWN | {0, user}


def refuse_foreign(path: Path) -> None:
    """Raise Foreign if a file or folder that is about to be trusted belongs to another user."""
    if is_foreign(path):
        raise Foreign(
            f"'{path}' belongs to {name_of(os.stat(path).st_uid)}: copy what you trust into a folder of yours"
        )


def name_of(user: int) -> str:
    """Return e.g. `user alice (uid 1000)`."""
    try:
        return f"user {pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"another user (uid {user})"


def _links(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield the links on an absolute path, including those behind links."""
    for place in (*reversed(path.parents), path):
        if place not in seen and os.path.islink(place):
            seen.add(place)
            yield place
            yield from _links(place.parent / os.readlink(place), seen)


def _open_to_others(folder: Path) -> Iterator[str]:
    """Yield what others may do to a folder: write into it, or replace it or a folder above it."""
    for place in (folder, *folder.parents):
        if not os.path.exists(place):  # missing or out of reach: opening it will tell
            continue
        status = os.stat(place)
        sticky = status.st_mode & stat.S_ISVTX
        if status.st_mode & stat.S_IWOTH and (place == folder or not sticky):
            yield f"everybody on this machine may write to '{place}'; to end that: chmod o-w '{place}'"
        if place == folder and status.st_mode & stat.S_IWGRP and not _is_private(status):
            yield f"group {_group_name(status.st_gid)} may write to it; to end that: chmod g-w '{place}'"


def _is_private(status: os.stat_result) -> bool:
    """Return whether the group is the owner's own. Many systems give each user a group of the same name."""
    try:
        return pwd.getpwuid(status.st_uid).pw_name == grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        return False


def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


# Open files, and read them in bounded memory.


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
    # The own pool of Arrow would reserve a GiB at its first use. The variable counts for one that is not imported yet.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    arrow = sys.modules.get("pyarrow")
    pool = arrow and arrow.default_memory_pool()
    if arrow:
        arrow.set_memory_pool(arrow.system_memory_pool())
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
        if arrow:
            arrow.set_memory_pool(pool)


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
