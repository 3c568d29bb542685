"""Train the runs of a comparison one after the other, and resume where it was interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ps_cluster.catalogue.objectives import OBJECTIVES
from ps_cluster.cluster.local_run import complete_config, resolve_data, start_run
from ps_cluster.comparison.metrics import METRICS
from ps_cluster.comparison.plan import Comparison, PlannedRun, planned_runs, training_order
from ps_cluster.comparison.rates import PLAN, SCALED
from ps_cluster.config.recipes import COMPILED
from ps_cluster.config.trees import flat
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files import claims
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.processes import environment, tensorboard_server
from ps_cluster.reporting.progress import make_view
from ps_cluster.reporting.terminal import print_line
from ps_cluster.run import checkpoints
from ps_cluster.run.completion import outcome_of
from ps_cluster.run.run_dir import CODE, TEMPORARY, RunDir

INTERRUPTED = 130
RUNS = "runs"  # folder of a comparison
_NOUN = "comparison"


def train_all(comparison: Comparison, output: Path, *, tensorboard: bool = False) -> tuple[list[Path], int]:
    """Train the runs not trained yet, in `training_order`, and record the plan and the order.

    Returns the run directories as planned, and the exit code of the first run that failed.

    An interrupted run is trained from its beginning, so its times belong to one training.

    Args:
      output: the caller holds its lock (files/locks.py).
      tensorboard: show all runs in TensorBoard while they are trained, and tell the link.
    Raises:
      UserError: `output` holds another comparison, the settings fit no run, or there is no data.
    """
    runs = planned_runs(comparison)
    # Errors are found before any file is written.
    dataset = resolve_data(runs[0].config.data, notify=print_line)
    comparison = _with_rule_of_compile(comparison, runs, dataset)
    runs = planned_runs(comparison)
    if comparison.target_score is not None:
        METRICS[OBJECTIVES[dataset.spec.objective].field].check_target(comparison.target_score)
    for run in runs:
        complete_config(run.config, dataset)  # refuses settings that do not fit the examples
    _claim(output, comparison, training_order(runs))
    roots = {run.name: output / RUNS / run.name for run in runs}
    beside = tensorboard_server.beside(tensorboard, output / RUNS, output / "tensorboard.log", print_line)
    with environment.temporary_files_in(output / TEMPORARY), beside:
        return list(roots.values()), _train_in_order(training_order(runs), roots)


def _with_rule_of_compile(comparison: Comparison, runs: Sequence[PlannedRun], dataset: PackedDataset) -> Comparison:
    """Return the comparison with the optimizer of the network's compile(), where all arms leave it to that.

    Rates are scaled from arm to arm, so they have to be known before the runs are planned.
    """
    if {run.config.optimizer.rule for run in runs} != {COMPILED}:
        return comparison
    optimizer = complete_config(runs[0].config, dataset).optimizer
    found = flat({"optimizer": optimizer.model_dump(mode="json")})
    return comparison.model_copy(update={"settings": {**comparison.settings, **found}})


def _train_in_order(runs: Sequence[PlannedRun], roots: Mapping[str, Path]) -> int:
    for number, run in enumerate(runs, 1):
        root = roots[run.name]
        if not outcome_of(root) and (code := _train(run, root, f"run {number} of {len(runs)}: {run.name}")):
            return code
        # All checkpoints were kept for scoring; those of many runs would fill the disk.
        checkpoints.keep_newest(RunDir(root).checkpoints, run.config.checkpoints.keep)
    return 0


def _train(run: PlannedRun, root: Path, title: str) -> int:
    view = make_view()
    view.notice(title)
    code = start_run(run.config, root, view=view, anew=True)
    return 0 if outcome_of(root) else code or INTERRUPTED  # one that diverged is a result of the comparison


def check_unclaimed(output: Path) -> None:
    """Raise UserError where a folder holds something, but no comparison."""
    claims.check_unclaimed(output, PLAN, _NOUN, besides=CODE)


def _claim(output: Path, comparison: Comparison, runs: list[PlannedRun]) -> None:
    # Only the report uses the target: another target needs no new runs.
    content = comparison.model_dump(mode="json", exclude={"target_score"})
    content["trained_in_this_order"] = [run.name for run in runs]
    before = dump_yaml(content)  # written by a version that did not record what it scaled
    plan = dump_yaml(content | {SCALED: [run.name for run in runs if run.scaled]})
    claims.claim(output, PLAN, plan, _NOUN, besides=CODE, same=(before,))
