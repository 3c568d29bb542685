"""Let a child process end with the process that started it, however that one ended."""

import ctypes
import os
import signal
from pathlib import Path

LAUNCHER_PID = "PS_CLUSTER_LAUNCHER_PID"  # environment variable of tasks
CALLER_PID = "PS_CLUSTER_CALLER_PID"  # environment variable of a command that another program has started for itself

_PR_SET_PDEATHSIG = 1


def die_with_launcher() -> None:
    """Ask Linux to kill this process when its launcher ends. Does nothing for a task that was started by hand."""
    _die_with(os.environ.get(LAUNCHER_PID))


def die_with_caller() -> None:
    """Ask Linux to kill this command when the program that called it ends. Does nothing for one started by hand."""
    _die_with(os.environ.pop(CALLER_PID, None))  # removed: a command that this one starts has another caller


def _die_with(parent: str | None) -> None:
    if parent is None:
        return
    die_with_parent()
    if os.getppid() != int(parent):  # it was gone before the line above
        os._exit(1)


def start_ticks(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; exec does not count as a start."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
