"""Measure the CPU seconds and the memory of a run's processes."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Mapping

import psutil

from ps_cluster.config.tasks import TRAINING_TYPES, Task
from ps_cluster.runs.machine_rows import ProcessUsage, UsageRow

# The kernel walks all pages of a process to compute its share: 33 ms for all processes of a default run.
MEMORY_EVERY_S = 5.0


def cpu_seconds(pid: int) -> float | None:
    """Return the user and system time of a process so far, in seconds; None if it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return times.user + times.system


def pss_bytes(pid: int) -> int | None:
    """Return the proportional set size (own pages plus a share of shared ones); None if it can't be read."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except (psutil.Error, OSError):
        return None


class Usage:
    """Measures the CPU time and the peak memory of every process of a run, and remembers processes that have ended."""

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
        self._processes: dict[int, ProcessUsage] = {}
        self._peak_sum: int | None = None
        self._next_memory_s = 0.0

    def poll(self, processes: Mapping[int, Task]) -> None:
        """Measure `processes` (pid → task), which run now. The same pid must mean the same process in all calls."""
        for pid, task in processes.items():
            row = self._processes.get(pid) or ProcessUsage(type=task.type, index=task.index, pid=pid)
            seconds = self._read_cpu(pid)
            self._processes[pid] = row if seconds is None else row.model_copy(update={"cpu_seconds": seconds})
        if processes and self._clock() >= self._next_memory_s:
            self._next_memory_s = self._clock() + MEMORY_EVERY_S
            sizes = {pid: size for pid in processes if (size := self._read_pss(pid)) is not None}
            for pid, size in sizes.items():
                row = self._processes[pid]
                self._processes[pid] = row.model_copy(update={"peak_pss_bytes": max(size, row.peak_pss_bytes or 0)})
            if sizes:
                self._peak_sum = max(sum(sizes.values()), self._peak_sum or 0)

    def report(self) -> UsageRow:
        """Return the usage of all processes so far."""
        rows = list(self._processes.values())
        return UsageRow(
            cpu_seconds=sum(row.cpu_seconds or 0.0 for row in rows if row.type in TRAINING_TYPES),
            peak_memory_bytes=self._peak_sum,
            processes=rows,
        )


_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 1 << 20


def return_large_blocks() -> None:
    """Let this process return each freed block of 1 MiB or more to the system (glibc; elsewhere nothing changes).

    By default, glibc returns the first freed block of this size and keeps all later ones, and the memory becomes
    fragmented. Do not call this function in a process that allocates such blocks in every step: the system would have
    to clear each of them again.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
