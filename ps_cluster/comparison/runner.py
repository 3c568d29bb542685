"""Trains the runs of a comparison one after the other, and goes on where it was interrupted."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from ps_cluster.cluster.start import resolve_data, start_run
from ps_cluster.comparison.plan import Comparison, PlannedRun, planned_runs
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.reporting.progress import make_view
from ps_cluster.rows.summary import Summary
from ps_cluster.run_dir import RunDir, write_whole

PLAN = "comparison.yaml"
INTERRUPTED = 130


def train_all(comparison: Comparison, output: Path) -> tuple[list[Path], int]:
    """Trains what is not trained yet. Returns the run directories and the exit code of the first run that didn't end well.

    A run that was interrupted is trained from its beginning, so that its times are those of one training.

    Raises:
      UserError: `output` holds another comparison, the settings fit no run, or there is no data.
    """
    runs = planned_runs(comparison)
    data = runs[0].config.data
    resolve_data(data.dataset, data.data_dir, notify=print)  # what is wrong with it is found before anything is made
    _claim(output, comparison)
    roots = [output / "runs" / run.name for run in runs]
    for number, (run, root) in enumerate(zip(runs, roots), 1):
        if not _completed(root) and (code := _train(run, root, f"run {number} of {len(runs)}: {run.name}")):
            return roots, code
    return roots, 0


def _train(run: PlannedRun, root: Path, title: str) -> int:
    if root.exists():
        shutil.rmtree(root)
    view = make_view()
    view.notice(title)
    code = start_run(run.config, root, view=view)
    return code or (0 if _completed(root) else INTERRUPTED)


def _completed(root: Path) -> bool:
    summary = RunDir(root).summary
    return summary.is_file() and read_json(summary, Summary).outcome == "completed"


def _claim(output: Path, comparison: Comparison) -> None:
    # The target is of the report alone: another one needs no other runs.
    plan = yaml.safe_dump(comparison.model_dump(mode="json", exclude={"target_accuracy"}), sort_keys=False)
    file = output / PLAN
    try:
        if file.is_file() and file.read_text(encoding="utf-8") != plan:
            raise UserError(f"--output: '{output}' holds another comparison: choose another, or remove it")
        if not file.is_file() and output.is_dir() and any(output.iterdir()):
            raise UserError(f"--output: '{output}' is not empty and holds no comparison: choose another")
        write_whole(file, plan)
    except OSError as error:
        raise UserError(f"--output: '{output}' can't be written: {error.strerror}") from error
