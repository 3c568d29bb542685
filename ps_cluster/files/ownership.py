"""Look at whose a folder is before files in it are trusted or written.

Refused is what another user of this machine could have prepared: a folder that belongs to somebody else, a way to it that leads
through somebody else's link. Said is what only may be wrong: others may write to it too (the files of a container's volume
often are so), or root works in what belongs to a user. What belongs to root is nobody else's: root can do everything anyway.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ps_cluster.errors import UserError

Notify = Callable[[str], None]


def unknown_owners(
    uid_map: Path = Path("/proc/self/uid_map"), overflow: Path = Path("/proc/sys/kernel/overflowuid")
) -> frozenset[int]:
    """The id that stands for everybody whom a user namespace does not know, root outside included, where this is one.

    A task in the private network of its run is in one, and sees what belongs to root so. The launcher, which is not, has
    looked at the run directory before.
    """
    try:
        whole = uid_map.read_text().split() == ["0", "0", str(2**32 - 1)]
        return frozenset() if whole else frozenset({int(overflow.read_text())})
    except (OSError, ValueError):
        return frozenset()


_UNKNOWN = unknown_owners()


class Foreign(UserError):
    """A file or folder of another user, or one reached through a link that another user made."""


def check_folder(folder: Path, what: str, notify: Notify, *, user: int | None = None) -> None:
    """Refuse a folder that is another user's, and say where others may write. One that is not there yet has only its way.

    Args:
      what: the kind of folder, for the message: "run directory".
      notify: gets one line for each thing that is said.
      user: id of the one who works; None: of this process.
    Raises:
      Foreign: it belongs to another user, or the way there leads through a link that another user made.
    """
    user = os.geteuid() if user is None else user
    check_way(folder, what, user=user)
    if os.path.exists(folder):
        _check_owner(folder, what, notify, user)
    for line in _open_to_others(folder.resolve()):
        notify(f"{what} '{folder}': {line}")


def check_way(folder: Path, what: str, *, user: int | None = None) -> None:
    """Refuse a folder whose way leads through a link that another user made, so before anything is made there."""
    user = os.geteuid() if user is None else user
    for link in _links(folder.absolute(), set()):
        owner = os.lstat(link).st_uid
        if owner not in trusted(user):
            raise Foreign(
                f"{what} '{folder}' is reached through '{link}', a link that {name_of(owner)} made: "
                "name the folder itself, or choose another"
            )


def is_foreign(path: Path, *, user: int | None = None) -> bool:
    """Return whether `path` belongs to a user whose files are not to be trusted, or is a link of one; for root: never."""
    user = os.geteuid() if user is None else user
    return user != 0 and not {os.stat(path).st_uid, os.lstat(path).st_uid} <= trusted(user)


def trusted(user: int) -> frozenset[int]:
    """The owners that `user` trusts: himself and root."""
    return _UNKNOWN | {0, user}


def refuse_foreign(path: Path) -> None:
    """Raise Foreign where a file or folder that is about to be trusted belongs to another user."""
    if is_foreign(path):
        raise Foreign(
            f"'{path}' belongs to {name_of(os.stat(path).st_uid)}: copy what you trust into a folder of yours"
        )


def name_of(user: int) -> str:
    """`user alice (uid 1000)`."""
    try:
        return f"user {pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"another user (uid {user})"


def _check_owner(folder: Path, what: str, notify: Notify, user: int) -> None:
    owner = os.stat(folder).st_uid
    if is_foreign(folder, user=user):
        raise Foreign(
            f"{what} '{folder}' belongs to {name_of(owner)}, who could change what lies in it: choose another"
        )
    if owner not in trusted(user):
        notify(f"{what} '{folder}' belongs to {name_of(owner)} and is used as root: what is made in it belongs to root")


def _links(path: Path, seen: set[Path]) -> Iterator[Path]:
    """The links on the way to an absolute path, those behind links included."""
    for place in (*reversed(path.parents), path):
        if place not in seen and os.path.islink(place):
            seen.add(place)
            yield place
            yield from _links(place.parent / os.readlink(place), seen)


def _open_to_others(folder: Path) -> Iterator[str]:
    """What others may do to a folder: write into it, or put another in the place of it or of one above it."""
    for place in (folder, *folder.parents):
        if not os.path.exists(place):  # or it is out of reach: whoever opens it is told
            continue
        status = os.stat(place)
        sticky = status.st_mode & stat.S_ISVTX
        if status.st_mode & stat.S_IWOTH and (place == folder or not sticky):
            yield f"everybody on this machine may write to '{place}'; to end that: chmod o-w '{place}'"
        if place == folder and status.st_mode & stat.S_IWGRP and not _is_private(status):
            yield f"group {_group_name(status.st_gid)} may write to it; to end that: chmod g-w '{place}'"


def _is_private(status: os.stat_result) -> bool:
    """Return whether the group is the owner's own: many systems give each user one of the same name."""
    try:
        return pwd.getpwuid(status.st_uid).pw_name == grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        return False


def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
