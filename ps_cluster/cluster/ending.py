"""The end of a run."""

from __future__ import annotations

from dataclasses import dataclass

from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.run.rows.training import TrainingResult
from ps_cluster.run.run_dir import RunDir


@dataclass(frozen=True)
class Ending:
    """The end of a run; `message` says what went wrong, on one line."""

    outcome: str  # "completed" | "stopped" | "failed"
    exit_code: int = 0
    message: str | None = None
    user_error: bool = False


def training_outcome(run_dir: RunDir) -> str:
    """Return the outcome that the leader wrote: "completed" or "stopped"; "failed" where it wrote none."""
    try:
        return "completed" if read_json(run_dir.training_result, TrainingResult).completed else "stopped"
    except (FileNotFoundError, UserError):
        return "failed"
