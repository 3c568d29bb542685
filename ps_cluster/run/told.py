"""The file in a task's workspace in which the leader tells it how the training stands. No TensorFlow.

The leader writes it through TensorFlow, on the task's device; so the task needs no port and no folder beside those it
has. It is written in place, so a reader may see a part of it, and looks again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ps_cluster.files.json_files import parse_json
from ps_cluster.files.malformed import Malformed

TOLD = "told.json"
_MOST_BYTES = 10_000


class Told(BaseModel):
    """A leader's word to a task.

    Attributes:
      epoch: of the leader (run/leaders.py).
      ended: how training has ended; None while it goes on.
      refused: why the leader does not take this task, on one line; None where it does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    epoch: int = Field(ge=0)
    ended: Literal["completed", "stopped"] | None = None
    refused: str | None = Field(default=None, max_length=2000)


def read_told(folder: Path) -> Told | None:
    """Return what the leader said last; None where it said nothing yet, or is just writing."""
    try:
        with (folder / TOLD).open("rb") as file:
            return Told.model_validate(parse_json(file.read(_MOST_BYTES).decode()))
    except (OSError, UnicodeDecodeError, Malformed, ValidationError):
        return None


def forget_told(folder: Path) -> None:
    """Remove what was said to an earlier process of this task."""
    (folder / TOLD).unlink(missing_ok=True)
