"""Write lines of a log: the events that they tell, and their forms, text or JSON. No TensorFlow."""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from ps_cluster.files.values import one_line, printable

# The events that log lines tell. Those that ask for action say what to do; docs/operations.md lists these.

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class LogEvent:
    """A kind of line.

    Attributes:
      name: in the field `event` of a line in JSON.
      says: what has happened, for the documentation.
      do: what a person should do; "" for nothing.
    """

    name: str
    level: Level
    says: str
    do: str = ""

    def __call__(self, message: str, **fields: Any) -> LogLine:
        """Return a line that tells this event."""
        return LogLine(message, self, fields)


class LogLine(str):
    """A line for a person, with the event that it tells and its values. It passes wherever a line of text does."""

    event: LogEvent
    fields: Mapping[str, Any]

    def __new__(cls, message: str, event: LogEvent, fields: Mapping[str, Any]) -> LogLine:
        line = super().__new__(cls, message)
        line.event, line.fields = event, fields
        return line

    @classmethod
    def of(cls, line: str) -> LogLine:
        """Return `line` as one that tells an event: `notice`, if it names none."""
        return line if isinstance(line, cls) else NOTICE(line)


NOTICE = LogEvent("notice", "info", "anything else that is good to know")
PROGRESS = LogEvent("progress", "info", "how far training is, every 5 s and at each new phase")
SCORE = LogEvent("score", "info", "a checkpoint was scored")
WAITING = LogEvent("waiting", "info", "a task waits for others")
CONNECTED = LogEvent("connected", "info", "those that were waited for answer")
DRAINING = LogEvent("draining", "info", "a stop was asked for: no new steps")
RUN_ENDED = LogEvent("run_ended", "info", "the run has ended: outcome, updates, last score")
TASK_ENDED = LogEvent("task_ended", "info", "a task of `task` has ended")

TASK_RESTARTED = LogEvent(
    "task_restarted", "warning", "a task died, and starts again by itself",
    "nothing, once. If it repeats: read the log that the line names",
)  # fmt: skip
CLUSTER_RESTARTED = LogEvent(
    "cluster_restarted", "warning", "the cluster starts again from the newest snapshot",
    "nothing, once. If it repeats: read the log of the task that the line names",
)  # fmt: skip
PORT_TAKEN = LogEvent(
    "port_taken", "warning", "another program took a port; all start again on others",
    "nothing, once. If it repeats: see which program takes ports of the ephemeral range",
)  # fmt: skip
TASK_FROZEN = LogEvent(
    "task_frozen", "warning", "a process was stopped (SIGSTOP) and is ended",
    "find who stops processes: a debugger, a container that is paused",
)  # fmt: skip
WORKER_SILENT = LogEvent(
    "worker_silent", "warning", "a worker did nothing while others did, and is ended",
    "read its stacks in its log: they show where it hung",
)  # fmt: skip
STANDSTILL = LogEvent(
    "standstill", "warning", "there was no update for too long; the leader is ended, and the cluster starts again",
    "read the stacks in all logs. Where single steps take much longer than others, set `cluster.longest_step_seconds`",
)  # fmt: skip
EVALUATOR_GIVEN_UP = LogEvent(
    "evaluator_given_up", "warning", "the evaluator died too often; training goes on without scores",
    "read its log, then score by hand: `evaluate --checkpoint-dir RUN_DIR`",
)  # fmt: skip
TASK_GIVES_UP = LogEvent(
    "task_gives_up", "warning", "a task of `task` ends before training has ended; the line says why",
    "let whatever runs it start the same command again. If it repeats: see to what the line misses",
)  # fmt: skip
PORTS_OPEN = LogEvent(
    "ports_open", "warning", "the run's ports are not in a network of their own",
    "let only trusted users reach this machine, or ask for `--isolation require`",
)  # fmt: skip
MEMORY_SHORT = LogEvent(
    "memory_short", "warning", "the run will take more memory than there is",
    "fewer workers, smaller batches, or a larger limit",
)  # fmt: skip
GENERATED_DATA = LogEvent(
    "generated_data", "warning", "the data is generated, not real",
    "name the data set: `--dataset cifar10 --data-dir DATA`",
)  # fmt: skip
DISK_REFUSES = LogEvent(
    "disk_refuses", "warning", "a row, snapshot or checkpoint can't be written; training goes on",
    "make room: after a death all that is not in a snapshot is trained again",
)  # fmt: skip
CHECKPOINT_PASSED_OVER = LogEvent(
    "checkpoint_passed_over", "warning", "a checkpoint can't be read, and is left out",
    "check the disk. The next one is taken",
)  # fmt: skip
ERROR = LogEvent(
    "error", "error", "the command or task failed; the line says why, and which log to read",
    "see [exit codes](#exit-codes)",
)  # fmt: skip

ALL = tuple(value for value in globals().values() if isinstance(value, LogEvent))
ASKING = tuple(event for event in ALL if event.do)


def table() -> str:
    """Return the events that ask for action, as a table for the documentation."""
    rows = (f"| `{event.name}` | {event.level} | {event.says} | {event.do} |" for event in ASKING)
    return "\n".join(["| event | level | what has happened | what to do |", "|---|---|---|---|", *rows])


# Write log lines as text for a person, or as one JSON object a line. No TensorFlow.
#
# A command with --log-format chooses once, for itself and for the processes that it starts: by environment variables.

LOG_FORMAT, LOG_TASK = "PS_CLUSTER_LOG_FORMAT", "PS_CLUSTER_LOG_TASK"
LAUNCHER = "launcher-0"


class LogFormat:
    """A way to write lines: here for a person. `is_text`: a terminal may also get tables and a view that redraws itself."""

    name: ClassVar[str] = "text"
    is_text: ClassVar[bool] = True

    def line(self, line: str, prefix: str = "") -> str:
        """Return a line without control characters and without its end. `prefix`: for a person."""
        return prefix + printable(line)

    def failure(self, error: BaseException) -> str:
        """Return an unexpected error with its traceback."""
        return "".join(traceback.format_exception(error)).rstrip("\n")


class JsonLines(LogFormat):
    """One object a line: time (RFC 3339), level, task, event, message, and the line's own fields."""

    name = "json"
    is_text = False

    def __init__(self, wall: Callable[[], float] = time.time):
        self._wall = wall

    def line(self, line: str, prefix: str = "") -> str:
        log_line = LogLine.of(line)
        content = {
            "time": datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds"),
            "level": log_line.event.level,
            "task": os.environ.get(LOG_TASK, LAUNCHER),
            "event": log_line.event.name,
            "message": printable(line),
        }
        return json.dumps(content | {name: _finite(value) for name, value in log_line.fields.items()})

    def failure(self, error: BaseException) -> str:
        stack = "".join(traceback.format_exception(error))
        return self.line(ERROR(f"{type(error).__name__}: {one_line(str(error))}", traceback=stack))


def _finite(value: Any) -> Any:
    """Return a value that JSON has: None for NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


TEXT = LogFormat()
FORMATS = {kind.name: kind for kind in (TEXT, JsonLines())}


def chosen() -> LogFormat:
    """Return the format of this process: that of the command that started it, or else text."""
    return FORMATS.get(os.environ.get(LOG_FORMAT, ""), TEXT)
