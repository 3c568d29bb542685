"""Ask before each rename and removal whether this process may still write.

A process has one fence, set once. A task that leads a run sets its claim (run/leaders.py); all other processes have
none. It is one for the whole process, so that no function that renames or removes a file can leave it out.
"""

from __future__ import annotations

from collections.abc import Callable


def _open() -> None:
    """Let every change pass."""


_check: Callable[[], None] = _open


def set_fence(check: Callable[[], None] | None) -> None:
    """Call `check` before each rename and removal from now on; it raises where nothing may be changed any more.

    None removes the fence.
    """
    global _check
    _check = check or _open


def check() -> None:
    """Raise the fence's error where this process may not change files any more."""
    _check()
