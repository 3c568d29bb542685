"""The base class of checks, and what one finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The ways in which a check can end. After a warning training works, but is slower, less safe or not as expected."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The answer of a check. `todo`: what to do about it; empty where all is well."""

    status: Status
    says: str
    todo: str = ""


class Check:
    """A question about this machine or installation. Subclass it and write `look`.

    Attributes:
      name: what is examined, in one or two words.
      limit_s: seconds after which it counts as failed.
    """

    name = ""
    limit_s = 10.0

    def look(self) -> Finding:
        """Return the answer. An exception counts as a failure."""
        raise NotImplementedError


def ok(says: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(Status.OK, says)


def warn(says: str, todo: str) -> Finding:
    """Return a finding with which training works in part."""
    return Finding(Status.WARN, says, todo)


def fail(says: str, todo: str) -> Finding:
    """Return a finding with which training does not work."""
    return Finding(Status.FAIL, says, todo)
