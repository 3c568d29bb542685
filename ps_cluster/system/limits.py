"""Read the CPU and memory limits of this process's control group, which is how a container is limited.

The kernel's documentation describes the limits of version 2 in admin-guide/cgroup-v2.rst (cpu.max, memory.max), and
those of version 1 in scheduler/sched-bwc.rst and admin-guide/cgroup-v1/memory.rst. If a group may use only some
processors (a cpuset), `os.sched_getaffinity` returns these processors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_MEMBERSHIP = Path("/proc/self/cgroup")  # the groups of this process, one line each: `number:controllers:path`
ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60  # version 1 means no limit by a number of about 2^63


@dataclass(frozen=True)
class Allowance:
    """The part of a machine's resources that a process may use. A field is None if there is no limit."""

    processors: int  # the number of processors on which the process may run
    cpus: float | None = None  # the CPU quota, in processor seconds per second
    memory_bytes: int | None = None
    left_bytes: int | None = None  # the part of `memory_bytes` that the groups do not use

    @property
    def threads(self) -> int:
        """The number of threads that can run at the same time: one per processor, or fewer under a quota."""
        return self.processors if self.cpus is None else max(1, min(self.processors, math.ceil(self.cpus)))

    @property
    def quota_decides(self) -> bool:
        """True if the quota allows fewer threads than there are processors."""
        return self.threads < self.processors


@dataclass(frozen=True)
class FreeMemory:
    """The memory that processes may still take: what is free now, or what the control group allows if that is less."""

    free_bytes: int
    allowed_bytes: int | None = None

    @property
    def memory_bytes(self) -> int:
        return self.free_bytes if self.allowed_bytes is None else min(self.free_bytes, self.allowed_bytes)

    def __str__(self) -> str:
        room = f"{self.memory_bytes / 1e9:.1f} GB"
        if self.memory_bytes == self.free_bytes:
            return f"the machine has {room} free"
        return f"the control group (cgroup) allows {room} more"


def free_memory() -> FreeMemory:
    """Return how much memory processes may take now."""
    return FreeMemory(psutil.virtual_memory().available, allowance().left_bytes)


def allowance(membership: Path = _MEMBERSHIP, root: Path = ROOT) -> Allowance:
    """Return the tightest limits of this process's control group and its parents, in cgroup version 2, 1 or both."""
    cpus = [limit for folder in folders("cpu", membership, root) for limit in _cpus(folder)]
    memory = [(limit, folder) for folder in folders("memory", membership, root) for limit in _memory(folder)]
    return Allowance(
        len(os.sched_getaffinity(os.getpid())),  # of the main thread, as another thread may have fewer processors
        min(cpus, default=None),
        min((limit for limit, _ in memory), default=None),
        min((max(0, limit - _used(folder)) for limit, folder in memory), default=None),
    )


def folders(controller: str, membership: Path, root: Path) -> Iterator[Path]:
    """Yield the folders that may hold limits of `controller`: the group's folder and its parents. Some may not exist.

    Inside a container, the file `membership` may list the group's path on the host. Then only one of the yielded
    folders exists in the container: the mount point.
    """
    for line in _lines(membership):
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mounts = (root / names, root / controller) if names else (root, root / "unified")
        for mount in mounts:
            own = mount / path.strip().lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(mount))


def _cpus(folder: Path) -> Iterator[float]:
    """Yield the CPU limit of a group, if it has one: its quota divided by the period, both in microseconds.

    In version 2, one file has both numbers, e.g. `150000 100000`, or `max 100000` without a limit. In version 1, each
    number has a file, and a quota of -1 means that there is no limit.
    """
    for line in _lines(folder / "cpu.max"):
        quota, period = line.split()
        if quota != "max":
            yield int(quota) / int(period)
    for quota, period in zip(_lines(folder / "cpu.cfs_quota_us"), _lines(folder / "cpu.cfs_period_us")):
        if int(quota) > 0:
            yield int(quota) / int(period)


def _memory(folder: Path) -> Iterator[int]:
    for line in (*_lines(folder / "memory.max"), *_lines(folder / "memory.limit_in_bytes")):
        if line != "max" and int(line) < _NO_LIMIT_BYTES:
            yield int(line)


def _used(folder: Path) -> int:
    """Return the bytes that a group uses, without cached files that were not read lately, which the kernel can drop."""
    used = sum(int(line) for name in ("memory.current", "memory.usage_in_bytes") for line in _lines(folder / name)[:1])
    numbers = dict(line.split() for line in _lines(folder / "memory.stat"))  # version 1 has totals with its children
    return used - int(numbers.get("total_inactive_file") or numbers.get("inactive_file") or 0)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
