"""Describe what a run runs on, what it may use of that, and what its processes take."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.config.tasks import TRAINING_TYPES, Task
from ps_cluster.installation import tensorflow_version

_BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
UNKNOWN = "an unknown processor"
CPUINFO = Path("/proc/cpuinfo")
_CODE = Path(__file__).resolve().parents[2]


def fastest_precision(cpuinfo: Path = CPUINFO) -> str:
    """Return "bfloat16" where the processor has instructions for it, else "float32" (also where that is unknown)."""
    return "bfloat16" if set(_BFLOAT16_FLAGS) & flags_of(cpuinfo) else "float32"


def describe(cpuinfo: Path = CPUINFO, allowed: Allowance | None = None) -> dict[str, Any]:
    """Return the machine's entry in summary.json; nothing in it names the machine or its user.

    `cores` and `memory_gib` are what this process may use. `cpu_limit` (processor seconds per second) and
    `memory_limit_gib` are the limits of its control group, None without a limit. `tensorflow` is None where it is not
    installed. `commit` is None outside a git checkout, and ends in "-dirty" where a file differs from that commit.
    """
    flags, allowed = flags_of(cpuinfo), allowed or allowance()
    memory, limit = psutil.virtual_memory().total, allowed.memory_bytes
    return {
        "processor": _first(cpuinfo, "model name") or platform.machine(),
        "cores": allowed.threads,
        "cpu_limit": allowed.cpus,
        "memory_gib": round(min(memory, limit or memory) / 2**30, 1),
        "memory_limit_gib": round(limit / 2**30, 1) if limit else None,
        **{flag: flag in flags for flag in _BFLOAT16_FLAGS},
        "tensorflow": tensorflow_version(),
        "commit": commit_of(_CODE),
    }


def processor_of(machine: Mapping[str, Any] | None) -> str:
    """Return the processor of a `describe` entry, with its bfloat16 instructions, which not all of its name have."""
    if not machine or "processor" not in machine:
        return UNKNOWN
    flags = ", ".join(flag for flag in _BFLOAT16_FLAGS if machine.get(flag))
    return f"{machine['processor']} ({flags})" if flags else machine["processor"]


def commit_of(code: Path) -> str | None:
    """Return the commit of a folder of code, e.g. "392b7299c0de" or "392b7299c0de-dirty"; None where git can't tell."""
    if not (code / ".git").exists():  # else git would answer for a repository around the code
        return None
    command = ["git", "-C", str(code), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    without_locks = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env=without_locks)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def flags_of(cpuinfo: Path) -> set[str]:
    """Return the names of the processor's instructions, as Linux has them; empty where that is unknown."""
    return set(_first(cpuinfo, "flags").split())


def _first(cpuinfo: Path, name: str) -> str:
    """Return the first value under `name` (that of the first core), or an empty string."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    parts = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in parts if key.strip() == name), "")


# Read the CPU and memory limits of this process's control group, which is how a container is limited.
#
# The kernel's documents: admin-guide/cgroup-v2.rst (cpu.max, memory.max), scheduler/sched-bwc.rst and
# admin-guide/cgroup-v1/memory.rst for version 1. The processors of a cpuset are those of `os.sched_getaffinity`.

_MEMBERSHIP, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60  # version 1 says so with a number of about 2^63


@dataclass(frozen=True)
class Allowance:
    """The share of a machine that a process may use; None where there is no limit."""

    processors: int  # that it may run on
    cpus: float | None = None  # quota: processor seconds a second
    memory_bytes: int | None = None
    left_bytes: int | None = None  # of the memory, beside what the groups use now

    @property
    def threads(self) -> int:
        """Return how many threads can run at the same time: one per processor, or fewer under a quota."""
        return self.processors if self.cpus is None else max(1, min(self.processors, math.ceil(self.cpus)))

    @property
    def quota_decides(self) -> bool:
        """Return whether the quota allows fewer threads than there are processors."""
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
            return f"the machine has {room}"
        return f"its control group allows {room} more"


def room() -> FreeMemory:
    """Return the memory that there is room for now."""
    return FreeMemory(psutil.virtual_memory().available, allowance().left_bytes)


def allowance(membership: Path = _MEMBERSHIP, root: Path = ROOT) -> Allowance:
    """Return the tightest limits of this process's control group and its parents, in cgroup version 2, 1 or both.

    Args:
      membership: file with the groups of this process, one line each: `number:controllers:path`.
      root: where the groups are mounted.
    """
    cpus = [limit for folder in folders("cpu", membership, root) for limit in _cpus(folder)]
    memory = [(limit, folder) for folder in folders("memory", membership, root) for limit in _memory(folder)]
    return Allowance(
        len(os.sched_getaffinity(0)),
        min(cpus, default=None),
        min((limit for limit, _ in memory), default=None),
        min((max(0, limit - _used(folder)) for limit, folder in memory), default=None),
    )


def folders(controller: str, membership: Path = _MEMBERSHIP, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders that may hold limits of `controller`: the group's own and those above it. Some may not exist.

    Inside a container the path may be the host's; only the mount itself is then visible.
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
    """Yield the CPU limit of a group. Version 2: `150000 100000` or `max 100000`; version 1: two files, -1 for none."""
    for line in _lines(folder / "cpu.max"):
        quota, period = line.split()
        yield from [] if quota == "max" else [int(quota) / int(period)]
    for quota, period in zip(_lines(folder / "cpu.cfs_quota_us"), _lines(folder / "cpu.cfs_period_us")):
        yield from [int(quota) / int(period)] if int(quota) > 0 else []


def _memory(folder: Path) -> Iterator[int]:
    for line in (*_lines(folder / "memory.max"), *_lines(folder / "memory.limit_in_bytes")):
        yield from [] if line == "max" or int(line) >= _NO_LIMIT_BYTES else [int(line)]


def _used(folder: Path) -> int:
    """Return the bytes that a group uses, without files in memory that nobody has read lately: the kernel drops those."""
    used = sum(int(line) for name in ("memory.current", "memory.usage_in_bytes") for line in _lines(folder / name)[:1])
    numbers = dict(line.split() for line in _lines(folder / "memory.stat"))  # version 1 has totals with its children
    return used - int(numbers.get("total_inactive_file") or numbers.get("inactive_file") or 0)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


# Measure the CPU seconds and the memory of a run's processes.

# The kernel walks all pages of a process to compute its share: 33 ms for all processes of a default run.
MEMORY_EVERY_S = 5.0


def cpu_seconds(pid: int) -> float | None:
    """Return the user and system time of a process so far, in seconds; None where it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return times.user + times.system


def pss_bytes(pid: int) -> int | None:
    """Return the proportional set size (own pages plus a share of shared ones); None where it can't be read."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except (psutil.Error, OSError):
        return None


class Usage:
    """The last CPU time and peak memory of every process of the run, including those that have ended."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        read_cpu: Callable[[int], float | None] = cpu_seconds,
        read_pss: Callable[[int], int | None] = pss_bytes,
    ):
        self._clock = clock
        self._read_cpu = read_cpu
        self._read_pss = read_pss
        self._processes: dict[int, dict[str, Any]] = {}  # pid → its entry in summary.json
        self._peak_sum: int | None = None
        self._next_memory_s = 0.0

    def look(self, processes: Mapping[int, Task]) -> None:
        """Measure the processes that run now.

        Args:
          processes: pid → task. A pid means the same process in all calls.
        """
        for pid, task in processes.items():
            own = {"type": task.type, "index": task.index, "pid": pid, "cpu_seconds": None, "peak_pss_bytes": None}
            row = self._processes.setdefault(pid, own)
            if (seconds := self._read_cpu(pid)) is not None:
                row["cpu_seconds"] = seconds
        if processes and self._clock() >= self._next_memory_s:
            self._next_memory_s = self._clock() + MEMORY_EVERY_S
            self._look_at_memory(processes)

    def _look_at_memory(self, processes: Mapping[int, Task]) -> None:
        sizes = {pid: size for pid in processes if (size := self._read_pss(pid)) is not None}
        for pid, size in sizes.items():
            row = self._processes[pid]
            row["peak_pss_bytes"] = max(size, row["peak_pss_bytes"] or 0)
        if sizes:
            self._peak_sum = max(sum(sizes.values()), self._peak_sum or 0)

    def report(self) -> dict[str, Any]:
        """Return the entries of summary.json.

        `cpu_seconds` is the sum over the training tasks; the evaluator, which only uses time left over, is listed among
        the processes. `peak_memory_bytes` is the highest sum over all processes at one time.
        """
        rows = list(self._processes.values())
        training = [row["cpu_seconds"] or 0.0 for row in rows if row["type"] in TRAINING_TYPES]
        return {"cpu_seconds": sum(training), "peak_memory_bytes": self._peak_sum, "processes": rows}
