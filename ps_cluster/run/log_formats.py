"""Write log lines as text for a person, or as one JSON object a line. No TensorFlow.

A command with --log-format chooses once, for itself and for the processes that it starts: by environment variables.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

from ps_cluster.files.plain_text import one_line, printable
from ps_cluster.run.log_events import ERROR, LogLine

LOG_FORMAT, LOG_TASK = "PS_CLUSTER_LOG_FORMAT", "PS_CLUSTER_LOG_TASK"
LAUNCHER = "launcher-0"


class LogFormat(ABC):
    """A way to write lines. `is_text`: a terminal may also get tables and a view that redraws itself."""

    name: ClassVar[str]
    is_text: ClassVar[bool] = False

    @abstractmethod
    def line(self, line: str, prefix: str = "") -> str:
        """Return a line without control characters and without its end. `prefix`: for a person."""

    @abstractmethod
    def failure(self, error: BaseException) -> str:
        """Return an unexpected error with its traceback."""


class TextLines(LogFormat):
    name = "text"
    is_text = True

    def line(self, line: str, prefix: str = "") -> str:
        return prefix + printable(line)

    def failure(self, error: BaseException) -> str:
        return "".join(traceback.format_exception(error)).rstrip("\n")


class JsonLines(LogFormat):
    """One object a line: time (RFC 3339), level, task, event, message, and the line's own fields."""

    name = "json"

    def __init__(self, wall: Callable[[], float] = time.time):
        self._wall = wall

    def line(self, line: str, prefix: str = "") -> str:
        told = LogLine.of(line)
        content = {
            "time": datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds"),
            "level": told.event.level,
            "task": os.environ.get(LOG_TASK, LAUNCHER),
            "event": told.event.name,
            "message": printable(line),
        }
        return json.dumps(content | {name: _finite(value) for name, value in told.fields.items()})

    def failure(self, error: BaseException) -> str:
        told = "".join(traceback.format_exception(error))
        return self.line(ERROR(f"{type(error).__name__}: {one_line(str(error))}", traceback=told))


def _finite(value: Any) -> Any:
    """Return a value that JSON has: None for NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


TEXT = TextLines()
FORMATS = {kind.name: kind for kind in (TEXT, JsonLines())}


def chosen() -> LogFormat:
    """Return the format of this process: that of the command that started it, or else text."""
    return FORMATS.get(os.environ.get(LOG_FORMAT, ""), TEXT)
