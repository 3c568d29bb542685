"""Train the runs of a comparison one after the other, and continue an interrupted comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ps_cluster.config import RunConfig
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.config.schedules import CONSTANT
from ps_cluster.config.setting_types import AUTO, COMPILED
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import INTERRUPTED, UserError
from ps_cluster.files import claimed_folders
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.launch.config_completion import complete_config, resolve_data
from ps_cluster.launch.local_run import start_run
from ps_cluster.process_variables import temporary_files_in
from ps_cluster.report.progress import make_view
from ps_cluster.report.terminal import print_line
from ps_cluster.runs import checkpoints
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.run_dir import CODE, TEMPORARY, RunDir
from ps_cluster.runs.scores import outcome_of
from ps_cluster.system import tensorboard_server
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.tools.compare.comparison_plan import (
    PLAN,
    REPORT,
    Comparison,
    PlannedRun,
    WrittenPlan,
    planned_runs,
    read_plan,
    training_order,
)
from ps_cluster.tools.compare.labels import baseline_of, labels
from ps_cluster.tools.compare.metric import metric_named

RUNS = "runs"  # in the folder of a comparison: the folder of its runs
_NOUN = "comparison"


def train_all(
    comparison: Comparison, output: Path, *, baseline: str | None = None, tensorboard: bool = False
) -> tuple[list[Path], int]:
    """Train those runs that are not trained yet, in the order of `training_order`. Record the plan and the order.

    A comparison that was made with fewer seeds is continued with the seeds that are new.

    An interrupted run is trained again from its beginning, so that its times belong to one training.

    Return the run directories in the order of the plan, and an exit code. If a run failed, this is the run's exit code.
    If a signal asked to stop before all runs were trained, it is the exit code for this signal. Otherwise it is 0.

    Args:
      output: the folder of the comparison; the caller holds its lock (files/locks.py).
      baseline: the arm with which the report compares all other arms.
      tensorboard: show all runs in TensorBoard while they are trained, and print the link.
    Raises:
      UserError: `output` holds another comparison, a setting does not fit, no arm is called `baseline`, or there is no data.
    """
    runs = planned_runs(comparison)
    # Errors are found before any file is written. Errors that do not depend on the data are found before it is loaded.
    check_unclaimed(output)
    dataset = resolve_data(runs[0].config.data, notify=print_line)
    comparison = _with_compiled_rate(comparison, runs, dataset)
    runs = planned_runs(comparison)
    complete = [_complete(run.config, comparison, dataset) for run in runs]
    if comparison.target_score is not None:
        monitor = Monitor.of(complete[0].evaluation)
        noun = OBJECTIVES[dataset.spec.objective].metric_name if monitor.name == AUTO else monitor.name
        metric_named(noun, monitor.better, "test").check_target(comparison.target_score)
    baseline_of(labels(complete), baseline)
    _claim(output, comparison, training_order(runs))
    roots = {run.name: output / RUNS / run.name for run in runs}
    beside = tensorboard_server.tensorboard_if(tensorboard, output / RUNS, output / "tensorboard.log", print_line)
    with temporary_files_in(output / TEMPORARY), beside:
        return list(roots.values()), _train_in_order(training_order(runs), roots)


def _complete(config: RunConfig, comparison: Comparison, dataset: PackedDataset) -> RunConfig:
    """Return the complete configuration of a run.

    Raises UserError if its settings do not fit the data or the comparison's time limit (`seconds`).
    """
    complete = complete_config(config, dataset)
    if comparison.seconds is not None and complete.schedule.kind != CONSTANT:
        raise UserError(
            "--seconds: the network was compiled with a schedule, which needs the number of updates: set "
            "schedule.kind=constant, or leave out --seconds to train all arms on equally many examples"
        )
    return complete


def _with_compiled_rate(comparison: Comparison, runs: Sequence[PlannedRun], dataset: PackedDataset) -> Comparison:
    """Return the comparison with the learning rate of the compiled network as a setting of all runs.

    This is the rate of the optimizer that was passed to the network's `compile`. The plan scales learning rates from
    arm to arm, so it has to know this rate. If an arm uses another optimizer, return the comparison unchanged.
    """
    if {run.config.optimizer.rule for run in runs} != {COMPILED}:
        return comparison
    # The rate of one arm must not become the rate of the others.
    arms = [
        arm.model_copy(
            update={"set": {key: value for key, value in arm.set.items() if not key.startswith("optimizer.")}}
        )
        for arm in comparison.arms
    ]
    [first, *_] = planned_runs(comparison.model_copy(update={"arms": tuple(arms)}))
    rate = complete_config(first.config, dataset).optimizer.learning_rate
    return comparison.model_copy(update={"settings": {**comparison.settings, "optimizer.learning_rate": rate}})


def _train_in_order(runs: Sequence[PlannedRun], roots: Mapping[str, Path]) -> int:
    stop_requests = StopRequests()
    for number, run in enumerate(runs, 1):
        root = roots[run.name]
        if not outcome_of(root):
            if stop_requests.count:  # a run that is asked to stop near its end still completes
                return stop_requests.exit_code
            view = make_view()
            view.notice(f"run {number} of {len(runs)}: {run.name}")
            code = start_run(run.config, root, view=view, anew=True, stop_requests=stop_requests)
            if not outcome_of(root):  # a run that diverged has an outcome, and is a result too
                return code or INTERRUPTED
        # All checkpoints were kept for scoring; those of many runs would fill the disk.
        checkpoints.keep_newest(RunDir(root).checkpoints, run.config.checkpoints.keep)
    return 0


def check_unclaimed(output: Path) -> None:
    """Raise UserError if a folder holds something other than a comparison."""
    claimed_folders.check_unclaimed(output, PLAN, _NOUN, besides=CODE)


def check_free_for_report(output: Path) -> None:
    """Raise UserError if a folder holds anything but an earlier report on finished runs. That report may be replaced."""
    if (output / PLAN).exists():
        raise UserError(f"--output: '{output}' holds a {_NOUN} and the runs that it has trained: choose another folder")
    claimed_folders.check_unclaimed(output, REPORT, "report on finished runs", besides=CODE)


def _claim(output: Path, comparison: Comparison, runs: list[PlannedRun]) -> None:
    # Only the report uses the target: another target needs no new runs.
    content = comparison.model_dump(mode="json", exclude={"target_score"})
    names, scaled = [run.name for run in runs], [run.name for run in runs if run.scaled]
    plan = WrittenPlan(seeds=comparison.seeds, trained_in_this_order=names, rates_scaled=scaled)
    content |= plan.model_dump(exclude={"settings"})

    def only_adds_seeds(file: Path) -> bool:
        before = read_plan(output)
        fewer = content | before.model_dump(exclude={"settings"})
        return before.is_part_of(plan) and file.read_bytes() == dump_yaml(fewer).encode()

    claimed_folders.claim(output, PLAN, dump_yaml(content), _NOUN, besides=CODE, extends=only_adds_seeds)
