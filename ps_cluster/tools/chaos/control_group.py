"""Limit one process by a control group.

Control groups are documented in admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/ of the Linux kernel.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.system.limits import ROOT, folders
from ps_cluster.tools.chaos.namespaces import NotAllowed

_EMPTY_WITHIN_S = 5.0  # A killed process stays in its group until the kernel has removed it.
_POLL_INTERVAL_S = 0.02
_COUNTS = ("memory.events", "memory.oom_control", "cpu.stat")  # files of lines "name count"


@dataclass(frozen=True)
class Limit:
    """A limit of one resource, for both versions of the kernel's control groups (2 and 1).

    Attributes:
      controller: the kernel's name of the resource, e.g. "memory".
      version_2, version_1: the files that set the limit in a group's folder, for each version of control groups: file
        name → the text to write into the file. A group is of version 2 if its folder has the first file of `version_2`.
    """

    controller: str
    version_2: Mapping[str, str]
    version_1: Mapping[str, str]


NO_MEMORY = Limit(
    "memory",
    version_2={"memory.max": "1048576", "memory.swap.max": "0"},
    version_1={"memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "1048576"},
)
FIVE_PERCENT = Limit(
    "cpu",
    version_2={"cpu.max": "5000 100000"},
    version_1={"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "5000"},
)


@contextmanager
def limited(pid: int, limit: Limit, root: Path = ROOT) -> Iterator[Path]:
    """Limit process `pid` by a new control group, and yield the group's folder. Raises NotAllowed if this fails.

    The process may end while the block runs.
    """
    around = [folder for folder in folders(limit.controller, Path(f"/proc/{pid}/cgroup"), root) if folder.is_dir()]
    group = _make(limit, around)
    try:
        _move(pid, group)
        yield group
    finally:
        with contextlib.suppress(NotAllowed):  # the process has ended
            _move(pid, around[0])
        _remove(group)


def count_in(group: Path, name: str) -> int:
    """Return the kernel's counter `name` of a control group, e.g. "oom_kill"; 0 if the group has no such counter."""
    for file in _COUNTS:
        with contextlib.suppress(FileNotFoundError):
            for line in (group / file).read_text().splitlines():
                if line.split()[0] == name:
                    return int(line.split()[1])
    return 0


def why_no_limit(limit: Limit, root: Path = ROOT) -> str | None:
    """Return why this user can't limit a process, or None if this works. The limit is tried on a sleeping process."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeper:
        try:
            with limited(sleeper.pid, limit, root):
                return None
        except NotAllowed as reason:
            return str(reason)
        finally:
            sleeper.kill()


def _make(limit: Limit, parents: list[Path]) -> Path:
    """Create a group with this limit in the first of the folders `parents` that allows it.

    Raises NotAllowed if none of them allows it.
    """
    reason = "no file system of control groups is mounted"
    for parent in parents:
        group = parent / f"ps-cluster-chaos-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            group.mkdir()
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        files = next(
            (files for files in (limit.version_2, limit.version_1) if (group / next(iter(files))).exists()), {}
        )
        try:
            for name, value in files.items():
                if (group / name).exists():  # Some systems don't count swap.
                    (group / name).write_text(value)
        except OSError as error:
            group.rmdir()
            reason = f"'{parent}' refuses the limit ({error.strerror})"
            continue
        if files:
            return group
        group.rmdir()
        reason = f"'{parent}' does not enable the controller '{limit.controller}' for new groups"
    raise NotAllowed(f"no control group that limits {limit.controller} can be made here: {reason}")


def _move(pid: int, group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise NotAllowed(f"a process can't be moved into '{group.parent}': {error.strerror}") from error


def _remove(group: Path) -> None:
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_INTERVAL_S)
