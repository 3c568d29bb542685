"""Write lines of a log, each with its event, as text for people or as JSON objects."""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from ps_cluster.files.values import finite, one_line, printable
from ps_cluster.notices import Line, LogEvent, LogLine
from ps_cluster.process_variables import LOG_FORMAT, LOG_TASK

PROGRESS = LogEvent("progress")  # the progress of training, every 5 s and at each new phase
SCORE = LogEvent("score")
WAITING = LogEvent("waiting")  # a task waits for other tasks
CONNECTED = LogEvent("connected")  # the awaited tasks answer
DRAINING = LogEvent("draining")  # a stop was requested, so no new steps begin
RUN_ENDED = LogEvent("run_ended")
TASK_ENDED = LogEvent("task_ended")  # a task of `ps-cluster task`

TASK_RESTARTED = LogEvent("task_restarted", "warning")
CLUSTER_RESTARTED = LogEvent("cluster_restarted", "warning")
PORT_TAKEN = LogEvent("port_taken", "warning")
TASK_FROZEN = LogEvent("task_frozen", "warning")
WORKER_SILENT = LogEvent("worker_silent", "warning")
STANDSTILL = LogEvent("standstill", "warning")
EVALUATOR_GIVEN_UP = LogEvent("evaluator_given_up", "warning")
TASK_GIVES_UP = LogEvent("task_gives_up", "warning")  # a task of `ps-cluster task`, before training has ended
PORTS_OPEN = LogEvent("ports_open", "warning")
MEMORY_SHORT = LogEvent("memory_short", "warning")
GENERATED_DATA = LogEvent("generated_data", "warning")
ROWS_END = LogEvent("rows_end", "warning")
DISK_REFUSES = LogEvent("disk_refuses", "warning")
CHECKPOINT_PASSED_OVER = LogEvent("checkpoint_passed_over", "warning")
UPDATE_DISAGREES = LogEvent("update_disagrees", "error")  # an update that was computed again for the proof
ERROR = LogEvent("error", "error")


LAUNCHER = "launcher-0"
ERROR_PREFIX = "Error: "  # what people see before the error of a command
_LOG = re.compile(r"\(log: (?P<path>.+?\.log)\)")  # the name of a folder may contain brackets


def with_log(reason: str, log: Path) -> str:
    """Return the reason for a failure, followed by the path of the log that has the details."""
    return f"{reason} (log: {log})"


def log_named_in(reason: str) -> Path | None:
    """Return the path of the log that `with_log` has added to a text; None if there is none."""
    named = _LOG.search(reason)
    return Path(named["path"]) if named else None


class LogFormat:
    """The format of log lines. This class formats them as text for people.

    `is_text`: whether the lines are text for people. If so, a terminal may also get tables and a live view.
    """

    name: ClassVar[str] = "text"
    is_text: ClassVar[bool] = True

    def line(self, line: Line, prefix: str = "") -> str:
        """Return a line without control characters and without a newline. A text line begins with `prefix`."""
        return prefix + printable(str(line))

    def failure(self, error: BaseException) -> str:
        """Return an unexpected error with its traceback."""
        return "".join(traceback.format_exception(error)).rstrip("\n")


class JsonLines(LogFormat):
    """The format of one JSON object per line: time (RFC 3339), level, task, event, message, and the line's fields."""

    name = "json"
    is_text = False

    def __init__(self, wall: Callable[[], float] = time.time):
        self._wall = wall

    def line(self, line: Line, prefix: str = "") -> str:
        log_line = LogLine.of(line)
        content = {
            "time": datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds"),
            "level": log_line.event.level,
            "task": os.environ.get(LOG_TASK, LAUNCHER),
            "event": log_line.event.name,
            "message": printable(log_line.message),
        }
        # JSON has neither NaN nor infinity.
        fields = {name: finite(one) if isinstance(one, float) else one for name, one in log_line.fields.items()}
        return json.dumps(content | fields)

    def failure(self, error: BaseException) -> str:
        stack = "".join(traceback.format_exception(error))
        return self.line(ERROR(f"{type(error).__name__}: {one_line(str(error))}", traceback=stack))


TEXT = LogFormat()
FORMATS = {kind.name: kind for kind in (TEXT, JsonLines())}


def chosen() -> LogFormat:
    """Return this process's log format: the `--log-format` of the command that started the process; text by default."""
    return FORMATS.get(os.environ.get(LOG_FORMAT, ""), TEXT)
