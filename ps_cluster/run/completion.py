"""Tell whether a run has done all that it can."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.files.json_files import read_json
from ps_cluster.run import checkpoints
from ps_cluster.run.rows.summary import Summary
from ps_cluster.run.run_dir import RunDir


def outcome_of(root: Path) -> str | None:
    """Return "completed" or "diverged" for a run that has ended so, its last checkpoint scored; None for any other.

    Raises UserError for damaged files.
    """
    run_dir = RunDir(root)
    try:
        summary, ended = read_json(run_dir.summary, Summary), checkpoints.ended(run_dir.checkpoints)
    except FileNotFoundError:
        return None
    is_over = ended is not None and summary.evaluation.step == ended.last_step
    return summary.outcome if is_over and summary.outcome in ("completed", "diverged") else None
