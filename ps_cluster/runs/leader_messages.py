"""Read the file in a task's workspace into which the leader writes its message about the state of training.

The leader writes the file through TensorFlow, on the task's device, so the task needs no other port or folder. The file is
written in place. A reader that sees only a part of it reads the file again later.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from ps_cluster.files.json_files import parse_json
from ps_cluster.files.values import Malformed
from ps_cluster.runs.result_rows import TrainingOutcome
from ps_cluster.runs.rows import Count, Row

MESSAGE_FILE = "told.json"
_MOST_BYTES = 10_000


class LeaderMessage(Row):
    """A message from a leader to a task.

    Attributes:
      term: the leader's term number.
      ended: how training has ended; None while it continues.
      refused: why the leader does not accept this task, on one line; None if the leader accepts it.
      start_again: why this task has to end and be restarted, on one line; None if no restart is needed.
    """

    term: Count
    ended: TrainingOutcome | None = None
    refused: str | None = Field(default=None, max_length=2000)
    start_again: str | None = Field(default=None, max_length=2000)


def read_leader_message(folder: Path) -> LeaderMessage | None:
    """Return the leader's newest message; None if there is no message yet, or only a part of it has been written."""
    try:
        with (folder / MESSAGE_FILE).open("rb") as file:
            return LeaderMessage.model_validate(parse_json(file.read(_MOST_BYTES).decode()))
    except (OSError, UnicodeDecodeError, Malformed, ValidationError):
        return None


def forget_leader_message(folder: Path) -> None:
    """Remove a message that was meant for an earlier process of this task."""
    (folder / MESSAGE_FILE).unlink(missing_ok=True)
