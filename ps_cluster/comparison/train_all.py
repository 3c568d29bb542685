"""Train the runs of a comparison one after the other, and resume where it was interrupted."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.cluster.local_run import complete_config, resolve_data, start_run
from ps_cluster.comparison.metrics import METRICS
from ps_cluster.comparison.plan import Comparison, PlannedRun, planned_runs, training_order
from ps_cluster.comparison.rates import PLAN, SCALED
from ps_cluster.errors import UserError
from ps_cluster.files import locks, ownership
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.reporting.progress import make_view
from ps_cluster.reporting.terminal import print_line
from ps_cluster.run import checkpoints
from ps_cluster.run.rows.summary import Summary
from ps_cluster.run.run_dir import CODE, RunDir

INTERRUPTED = 130


def train_all(comparison: Comparison, output: Path) -> tuple[list[Path], int]:
    """Train the runs not trained yet, in `training_order`, and record the plan and the order.

    Returns the run directories as planned, and the exit code of the first run that failed.

    An interrupted run is trained from its beginning, so its times belong to one training.

    Args:
      output: the caller holds its lock (files/locks.py).
    Raises:
      UserError: `output` holds another comparison, the settings fit no run, or there is no data.
    """
    runs = planned_runs(comparison)
    # Errors are found before any file is written.
    dataset = resolve_data(runs[0].config.data, notify=print_line)
    if comparison.target_score is not None:
        METRICS[OBJECTIVES[dataset.spec.objective].field].check_target(comparison.target_score)
    for run in runs:
        complete_config(run.config, dataset)  # refuses settings that do not fit the examples
    _claim(output, comparison, training_order(runs))
    roots = {run.name: output / "runs" / run.name for run in runs}
    for number, run in enumerate(training_order(runs), 1):
        root = roots[run.name]
        if not _completed(root) and (code := _train(run, root, f"run {number} of {len(runs)}: {run.name}")):
            return list(roots.values()), code
        # All checkpoints were kept for scoring; those of many runs would fill the disk.
        checkpoints.keep_newest(RunDir(root).checkpoints, run.config.checkpoints.keep)
    return list(roots.values()), 0


def _train(run: PlannedRun, root: Path, title: str) -> int:
    view = make_view()
    view.notice(title)
    code = start_run(run.config, root, view=view, anew=True)
    return code or (0 if _completed(root) else INTERRUPTED)


def _completed(root: Path) -> bool:
    """Return whether a run is trained and its last checkpoint scored. They are scored in order, after training."""
    run_dir = RunDir(root)
    try:
        summary, ended = read_json(run_dir.summary, Summary), checkpoints.ended(run_dir.checkpoints)
    except FileNotFoundError:
        return False
    return summary.outcome == "completed" and ended is not None and summary.evaluation.step == ended.last_step


def check_unclaimed(output: Path) -> None:
    """Raise UserError where a folder holds something, but no comparison."""
    if not (output / PLAN).is_file() and not locks.is_empty(output, besides=CODE):
        raise UserError(f"--output: '{output}' is not empty and holds no comparison: choose another")


def _claim(output: Path, comparison: Comparison, runs: list[PlannedRun]) -> None:
    # Only the report uses the target: another target needs no new runs.
    content = comparison.model_dump(mode="json", exclude={"target_score"})
    content["trained_in_this_order"] = [run.name for run in runs]
    before = dump_yaml(content)  # written by a version that did not record what it scaled
    plan = dump_yaml(content | {SCALED: [run.name for run in runs if run.scaled]})
    file = output / PLAN
    try:
        if file.is_file():
            ownership.refuse_foreign(file)
        if file.is_file() and file.read_text(encoding="utf-8") not in (plan, before):
            raise UserError(f"--output: '{output}' holds another comparison: choose another, or remove it")
        check_unclaimed(output)
        write_whole(file, plan)
    except OSError as error:
        raise UserError(f"--output: '{output}' can't be written: {error.strerror}") from error
