"""The end of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ps_cluster.run_dir import RunDir


@dataclass(frozen=True)
class Ending:
    """The end of a run; `message` says what went wrong, on one line."""

    outcome: str  # "completed" | "stopped" | "failed"
    exit_code: int = 0
    message: str | None = None
    user_error: bool = False


def training_outcome(run_dir: RunDir) -> str:
    """Return what the leader says of its training: "completed" or "stopped"; "failed" where it says nothing."""
    try:
        return "completed" if json.loads(run_dir.training_result.read_text())["completed"] else "stopped"
    except (OSError, ValueError, KeyError):
        return "failed"
