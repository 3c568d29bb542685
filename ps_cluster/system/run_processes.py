"""Tell which processes belong to a run.

A pid in the files of a run is not enough, because the system may have given it to another program since.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Literal

import psutil

ProcessState = Literal["running", "stopped", "gone"]
"""A stopped process got SIGSTOP, and may run again."""
_LISTENING = "0A"  # the state of a socket in /proc/PID/net/tcp


def start_ticks(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; exec does not count as a start."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def age_seconds(pid: int) -> float:
    """Return the seconds since a process was started; exec does not count as a start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks(pid) / os.sysconf("SC_CLK_TCK")


def life_of(launcher_pid: int) -> str:
    """Return a unique id of a launcher process: pid and start time. In a container the pid alone is often reused."""
    return f"{launcher_pid}@{start_ticks(launcher_pid)}"


def state_of(pid: int, root: Path, life: str | None = None) -> ProcessState:
    """Return the state of a process of a run. `pid`: its pid, as a file of the run names it.

    The state is "gone" if no living process of the run has this pid.

    `root`: the run directory, resolved. `life`: the unique id of the process (`life_of`), if the files have it.
    """
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        lives = process.status() != psutil.STATUS_ZOMBIE
        if (lives and life_of(pid) == life) if life else belongs(process, root):
            return "stopped" if process.status() == psutil.STATUS_STOPPED else "running"
    return "gone"


def listens(pid: int, port: int) -> bool:
    """Return whether a process listens at a TCP port in the network of process `pid`, which may be private.

    Nothing is sent to the port. If this process has no right to read the list of ports, the result is True.
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
    """Return whether a process has the run directory `root` (resolved) as an argument, or works in it."""
    with contextlib.suppress(psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return str(root) in process.cmdline() or root in Path(process.cwd()).parents
    return False
