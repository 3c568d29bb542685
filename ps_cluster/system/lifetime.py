"""End a process together with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal

from ps_cluster.process_variables import LAUNCHER_PID, take_caller_pid

_PR_SET_PDEATHSIG = 1


def die_with_launcher() -> None:
    """Ask Linux to kill this process when its launcher ends. Does nothing for a task that was started by hand."""
    _die_with(os.environ.get(LAUNCHER_PID))


def die_with_caller() -> None:
    """Ask Linux to kill this command when the program that called it ends. No effect on commands started by hand."""
    _die_with(take_caller_pid())


def _die_with(parent: str | None) -> None:
    if parent is None:
        return
    die_with_parent()
    if os.getppid() != int(parent):  # the parent had ended before the line above
        os._exit(1)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
