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

    outcome: str  # "completed" | "stopped" | "diverged" | "failed"
    exit_code: int = 0
    message: str | None = None
    user_error: bool = False


def diverged_line(updates: int) -> str:
    """Return what to do about a training whose weights are no longer finite, on one line."""
    return (
        f"the training diverged: after {updates:,} updates weights are NaN or infinite; begin a new run with a lower "
        "optimizer.learning_rate or with optimizer.global_clip_norm=1 (docs/own-network.md#if-it-does-not-learn)"
    )


def training_outcome(run_dir: RunDir) -> str:
    """Return the outcome that the leader wrote: "completed", "stopped" or "diverged"; "failed" where it wrote none."""
    try:
        result = read_json(run_dir.training_result, TrainingResult)
    except (FileNotFoundError, UserError):
        return "failed"
    return "diverged" if result.diverged else "completed" if result.completed else "stopped"
