"""Find the line in the output of a process that says why it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

_TAIL_BYTES = 2**16
_LINE_CHARACTERS = 300
# Lines that libraries log at level INFO do not say why a process ended.
_CHATTER = re.compile(r"I\d{4} \d|WARNING: All log messages before absl")
# The line with which a library ends its process. Stack traces, registers and names of libraries follow it.
_FATAL = re.compile(r"F\d{4} \d|Fatal Python error|terminate called|.*\bCheck failed: ")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[\w.]+(:|$)")
# The line between two tracebacks of one chain.
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def failure_line(log: Path, start: int, exit_code: int) -> str:
    """Return the line of a log that says why its process ended, cut to a readable length; "" without such a line.

    The first error that a process writes when it fails is the reason, because later errors follow from it. Exceptions
    that were caught and logged earlier are not the reason, so only the last chain of tracebacks counts. Without any
    error, this is the last line that was not logged at level INFO. `start`: the number of bytes of the log that earlier
    processes wrote.
    """
    try:
        file = log.open("rb")
    except OSError:  # somebody has removed it
        return ""
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").split("\n")
    fatal = [line for line in lines if exit_code != -signal.SIGKILL and _FATAL.match(line)]
    raised = _first_exception(lines) if exit_code > 0 else ""
    telling = [line for line in map(str.strip, lines) if line and not _CHATTER.match(line)]
    return next(iter((*fatal, *filter(None, [raised]), *telling[-1:])), "").strip()[:_LINE_CHARACTERS]


def last_error_line(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a program wrote to standard error, or if it wrote none, its exit code in words."""
    lines = ended.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {ended.returncode}"


def _first_exception(lines: list[str]) -> str:
    """Return the line that names the first exception of the last chain of tracebacks; "" without exceptions."""
    begin, before = None, ""
    for number, line in enumerate(lines):
        if line.startswith(_TRACEBACK) and (begin is None or not before.startswith(_CHAINED)):
            begin = number
        before = line if line.strip() else before
    return "" if begin is None else next(filter(_EXCEPTION.match, lines[begin + 1 :]), "")
