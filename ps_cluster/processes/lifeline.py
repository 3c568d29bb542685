"""Let a child process end with the process that started it, however that one ended."""

import ctypes
import os
import signal
from pathlib import Path

LAUNCHER_PID = "PS_CLUSTER_LAUNCHER_PID"

_PR_SET_PDEATHSIG = 1


def die_with_launcher() -> None:
    """Ask Linux to kill this process when its launcher ends. Does nothing for a task that was started by hand."""
    launcher = os.environ.get(LAUNCHER_PID)
    if launcher is None:
        return
    die_with_parent()
    if os.getppid() != int(launcher):  # it was gone before the line above
        os._exit(1)


def start_ticks(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; exec does not count as a start."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
