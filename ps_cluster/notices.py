"""Name the type of functions that take a line for the user."""

from __future__ import annotations

from typing import Protocol


class Notify(Protocol):
    """Takes a line that a user should read, e.g. to print it."""

    def __call__(self, line: str, /) -> None: ...


def ignore(line: str, /) -> None:
    """Take a line, and show it to nobody."""
