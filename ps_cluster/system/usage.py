"""Measure the CPU seconds and memory of a run's processes, from procfs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from ps_cluster.config.modes import TRAINING_TYPES, Task
from ps_cluster.system.environment import life_of, start_ticks

# The kernel walks all pages of a process to compute its share: 33 ms for all processes of a default run.
MEMORY_EVERY_S = 5.0

_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


def cpu_seconds(pid: int) -> float | None:
    """Return the user and system time of a process so far, in seconds; None where it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return times.user + times.system


def age_seconds(pid: int) -> float:
    """Return the seconds since a process was started; exec does not count as a start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks(pid) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int | None:
    """Return the proportional set size (own pages plus a share of shared ones); None where it can't be read."""
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


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
        self._tasks: dict[int, Task] = {}
        self._cpu: dict[int, float] = {}
        self._peak_pss: dict[int, int] = {}
        self._peak_sum: int | None = None
        self._next_memory_s = 0.0

    def look(self, processes: Mapping[int, Task]) -> None:
        """Measure the processes that run now.

        Args:
          processes: pid → task. A pid means the same process in all calls.
        """
        self._tasks.update(processes)
        for pid in processes:
            if (seconds := self._read_cpu(pid)) is not None:
                self._cpu[pid] = seconds
        if processes and self._clock() >= self._next_memory_s:
            self._next_memory_s = self._clock() + MEMORY_EVERY_S
            self._look_at_memory(processes)

    def _look_at_memory(self, processes: Mapping[int, Task]) -> None:
        sizes = {pid: size for pid in processes if (size := self._read_pss(pid)) is not None}
        for pid, size in sizes.items():
            self._peak_pss[pid] = max(size, self._peak_pss.get(pid, 0))
        if sizes:
            self._peak_sum = max(sum(sizes.values()), self._peak_sum or 0)

    def report(self) -> dict[str, Any]:
        """Return the entries of summary.json.

        `cpu_seconds` is the sum over the training tasks; the evaluator, which only uses time left over, is listed among
        the processes. `peak_memory_bytes` is the highest sum over all processes at one time.
        """
        training = (pid for pid, task in self._tasks.items() if task.type in TRAINING_TYPES)
        return {
            "cpu_seconds": sum(self._cpu.get(pid, 0.0) for pid in training),
            "peak_memory_bytes": self._peak_sum,
            "processes": [
                {
                    "type": task.type,
                    "index": task.index,
                    "pid": pid,
                    "cpu_seconds": self._cpu.get(pid),
                    "peak_pss_bytes": self._peak_pss.get(pid),
                }
                for pid, task in self._tasks.items()
            ],
        }


# Tell which processes belong to a run: a pid that its files name may be another program's by now.

_LISTENING = "0A"  # the state of a socket in /proc/PID/net/tcp


def state_of(pid: int, root: Path, life: str | None = None) -> str:
    """Return "running", "stopped" (SIGSTOP), or "gone", for a process that a run's files name.

    Args:
      root: the run directory, resolved.
      life: the unique id of the process (environment.life_of), where the files have it.
    """
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if _lives(process, life) if life else belongs(process, root):
            return "stopped" if process.status() == psutil.STATUS_STOPPED else "running"
    return "gone"


def _lives(process: psutil.Process, life: str) -> bool:
    with contextlib.suppress(OSError):
        return process.status() != psutil.STATUS_ZOMBIE and life_of(process.pid) == life
    return False


def listens(pid: int, port: int) -> bool:
    """Return whether anybody listens at a TCP port in the network of a process, which may be a private one.

    Nothing is sent to the port. True where the system does not say.
    """
    try:
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except PermissionError:
        return True
    except OSError:
        return False
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return any(row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def belongs(process: psutil.Process, root: Path) -> bool:
    """Return whether a process names this run directory (resolved) or works in it."""
    with contextlib.suppress(psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return str(root) in process.cmdline() or root in Path(process.cwd()).parents
    return False
