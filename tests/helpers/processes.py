"""Find the processes of a run: all whose command line or environment names its directory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def of_run(run_dir: Path) -> list[psutil.Process]:
    """Return the live processes of the run in `run_dir`, without the calling process and its ancestors."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [p for p in psutil.process_iter() if p.pid not in own and _names(p, str(run_dir.resolve()))]


def assert_none_left(run_dir: Path, within_s: float = 10.0) -> None:
    """Assert that every process of the run ends within `within_s` seconds."""
    left = of_run(run_dir)
    deadline = time.monotonic() + within_s
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = of_run(run_dir)
    assert not left, f"still there: {left}"


def has_heard(pid: int, number: int) -> bool:
    """Return whether the process has taken this signal, so that it is no longer pending."""
    waiting = re.search(r"^ShdPnd:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return waiting is not None and not int(waiting[1], 16) >> (number - 1) & 1


def wait_until(condition: Callable[[], object], within_s: float = 120.0, every_s: float = 0.02) -> None:
    """Wait until `condition` holds, which is checked every `every_s` seconds. Fail after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {condition}"
        time.sleep(every_s)


def _names(process: psutil.Process, text: str) -> bool:
    with contextlib.suppress(psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if any(text in argument for argument in process.cmdline()):
            return True
        return any(text in value for value in process.environ().values())
    return False
