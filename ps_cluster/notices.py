"""Define the lines that are logged for the user, their events, and the type of functions that take such lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class LogEvent:
    """An event that is logged as a line. runs/logs.py lists all events.

    docs/troubleshooting.md says what to do about each event. `name` is the value of the field `event` in a JSON line.
    """

    name: str
    level: Literal["info", "warning", "error"] = "info"

    def __call__(self, message: str, **fields: Any) -> LogLine:
        """Return a line about this event."""
        return LogLine(message, self, fields)


@dataclass(frozen=True)
class LogLine:
    """A log line: a message for people, its event, and `fields` for programs. Only a JSON log contains the fields."""

    message: str
    event: LogEvent
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, line: Line) -> LogLine:
        """Return `line` as a `LogLine`. If it is a plain text, its event is `notice`."""
        return line if isinstance(line, cls) else NOTICE(str(line))

    def __str__(self) -> str:
        return self.message

    def __format__(self, specification: str) -> str:
        raise TypeError("a LogLine in an f-string loses its event: make the whole text a LogLine, or use its `message`")


Line = str | LogLine

NOTICE = LogEvent("notice")  # the event of a plain text


class Notify(Protocol):
    """A function that takes a line that a user should read, e.g. to print it."""

    def __call__(self, line: Line, /) -> None: ...


def ignore(line: Line, /) -> None:
    """Take a line and discard it."""
