"""Tell whether a run has done all its work."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.files.json_files import read_json
from ps_cluster.run import checkpoints
from ps_cluster.run.rows.summary import Summary
from ps_cluster.run.run_dir import RunDir


def is_completed(root: Path) -> bool:
    """Return whether a run is trained and its last checkpoint scored. Raises UserError for damaged files."""
    run_dir = RunDir(root)
    try:
        summary, ended = read_json(run_dir.summary, Summary), checkpoints.ended(run_dir.checkpoints)
    except FileNotFoundError:
        return False
    return summary.outcome == "completed" and ended is not None and summary.evaluation.step == ended.last_step
