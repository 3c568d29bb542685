"""Check who owns a folder before anything is written into it, and who owns a file before it is trusted.

The threat model is in docs/clusters.md#security. A folder is checked once, when a command opens it. A folder of another
user is refused, and so is a path that leads through another user's link. A folder that everybody may write to is used,
with a warning: volumes of containers often are such folders. Files of root are trusted, since root can do everything anyway.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.notices import Notify


@contextlib.contextmanager
def owner_only_writes() -> Iterator[None]:
    """Make files that are created in the block writable for this user only.

    The command line does this for every command.
    """
    before = os.umask(0o022)
    os.umask(before | 0o022)
    try:
        yield
    finally:
        os.umask(before)


def unknown_owners(
    uid_map: Path = Path("/proc/self/uid_map"), overflow: Path = Path("/proc/sys/kernel/overflowuid")
) -> frozenset[int]:
    """Return a set with the user id that stands for all users who are unknown in this user namespace.

    The set is empty if this process is not in a user namespace of its own. A task in the private computer network of
    its run is in such a namespace, and sees this id as the owner of root's files. The launcher is in no such namespace,
    and has checked the run directory before it starts a task.
    """
    try:
        whole = uid_map.read_text().split() == ["0", "0", str(2**32 - 1)]
        return frozenset() if whole else frozenset({int(overflow.read_text())})
    except (OSError, ValueError):
        return frozenset()


_UNKNOWN = unknown_owners()


class Foreign(UserError):
    """Raised for a file or folder that belongs to another user, or is reached through another user's link."""


def check_folder(folder: Path, what: str, notify: Notify) -> None:
    """Refuse a folder of another user, and warn if everybody may write into it. If it is missing, check only its path.

    `what`: the kind of folder, for the message, e.g. "run directory". Raises Foreign also if the path leads through
    another user's link.
    """
    refuse_foreign_symlinks(folder, what)
    if os.path.exists(folder):
        owner = os.stat(folder).st_uid
        if is_foreign(folder):
            raise Foreign(
                f"{what} '{folder}' belongs to {name_of(owner)}, who could change the files in it: choose another folder"
            )
        if not _is_trusted(owner):
            notify(
                f"{what} '{folder}' belongs to {name_of(owner)}, but this command runs as root: files that it writes "
                "there belong to root"
            )
    for place in _open_to_everybody(Path(os.path.realpath(folder))):
        notify(
            f"{what} '{folder}': everybody on this machine may write to '{place}'; to prevent this: chmod o-w '{place}'"
        )


def refuse_foreign_symlinks(folder: Path, what: str) -> None:
    """Raise Foreign if the path to a folder leads through another user's link. Call this before writing there."""
    for link in _links(folder.absolute(), set()):
        owner = os.lstat(link).st_uid
        if not _is_trusted(owner):
            raise Foreign(
                f"{what} '{folder}' is reached through '{link}', a link that {name_of(owner)} made: "
                "name the folder itself, or choose another folder"
            )


def is_foreign(path: Path) -> bool:
    """Return whether `path` belongs to an untrusted user or is such a user's link. For root this is always False."""
    return os.geteuid() != 0 and not (_is_trusted(os.stat(path).st_uid) and _is_trusted(os.lstat(path).st_uid))


def _is_trusted(owner: int) -> bool:
    """Return whether files of user `owner` are trusted. Root, this process's user and `unknown_owners` are trusted."""
    return owner in (0, os.geteuid()) or owner in _UNKNOWN


def refuse_foreign(path: Path) -> None:
    """Raise Foreign if a file or folder belongs to another user. Call this before its content is trusted."""
    if is_foreign(path):
        raise Foreign(
            f"'{path}' belongs to {name_of(os.stat(path).st_uid)}: if you trust it, copy it into a folder of your own"
        )


def name_of(user: int) -> str:
    """Return the name of a user for messages, e.g. `user alice (uid 1000)`."""
    try:
        return f"user {pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"another user (uid {user})"


def _links(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield the links on an absolute path, including links on the paths to which these links lead."""
    for place in (*reversed(path.parents), path):
        if place not in seen and os.path.islink(place):
            seen.add(place)
            yield place
            yield from _links(place.parent / os.readlink(place), seen)


def _open_to_everybody(folder: Path) -> Iterator[Path]:
    """Yield `folder` if every user may write into it, and each folder above it whose content any user could replace."""
    for place in (folder, *folder.parents):
        if os.path.exists(place):  # a missing or unreachable folder is noticed when it is opened
            mode = os.stat(place).st_mode
            if mode & stat.S_IWOTH and (place == folder or not mode & stat.S_ISVTX):
                yield place
