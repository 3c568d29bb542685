"""The command `ps-cluster compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ps_cluster.cli.command_line import command, examples, option
from ps_cluster.cli.options import (
    GivenSettings,
    config_and_set_options,
    config_options,
    tensorboard_option,
    trusted_code,
)
from ps_cluster.cli.value_types import INPUT_PATH, LIST, OUTPUT_FOLDER, Integer, Number
from ps_cluster.errors import UserError
from ps_cluster.report.terminal import make_console, print_error, print_line

if TYPE_CHECKING:
    from ps_cluster.tools.compare.comparison_plan import Comparison


@command(
    epilog=examples(
        "compare --modes async,bounded,sync --model tutorial_cnn --epochs 3",
        "compare --modes async,sync --seeds 3 --epochs 2 --dry-run",
        "compare --modes async,sync --model tutorial_cnn --seconds 60 --straggler none,2:5x",
        "compare runs/first runs/second --output both",
    ),
)
@trusted_code
@click.argument("runs", nargs=-1, type=INPUT_PATH, metavar="[RUN_DIR]...")
@option("--modes", type=LIST, help="Modes to compare, separated by commas; default: all modes without local steps.")
@option("--seeds", type=Integer(1, 100), help="Number of seeds (0, 1, 2, …) that each arm is trained with; default: 3.")
@option(
    "--straggler",
    "stragglers",
    type=LIST,
    help="Settings of slow workers to compare, separated by commas; default: none. With none,2:5x, each arm is trained "
    "without slow workers, and again with worker 2 five times slower.",
)
@option(
    "--batches",
    type=LIST,
    help="What is equal in all arms: the number of examples per update (same_per_update), or per step of a worker "
    "(same_per_worker); default: both in turn.",
)
@option(
    "--target-score",
    type=Number(0, min_open=True),
    help="Also report the time and the number of examples that a run needs to reach this test accuracy (0.6 is 60 %). For "
    "a regression, give a test error, in the units of the values to predict. Default: the hardest round number that "
    "every run reached, but not yet at its first score; runs that diverged are ignored.",
)
@option(
    "--seconds",
    type=Number(0, min_open=True),
    help="Train every arm for this many seconds at a constant learning rate, instead of on equally many examples.",
)
@option("--baseline", help="The arm with which the other arms are compared; default: sync, or else the first arm.")
@option(
    "--output",
    type=OUTPUT_FOLDER,
    default=Path("comparison"),
    help="Folder of the runs and the report. An unfinished comparison in it is continued. A larger --seeds adds runs.",
)
@option(
    "--force",
    is_flag=True,
    help="Compare the runs even if they differ in settings that should be equal; the report then says so.",
)
@tensorboard_option
@option("--dry-run", is_flag=True, help="Print the runs in the order in which they are trained; start nothing.")
@config_options(
    "--workers", "--ps", "--dataset", "--data-dir", "--model", "--epochs", "--steps", "--batch-size", "--precision"
)  # fmt: skip
@config_and_set_options
def compare(
    given: GivenSettings,
    runs: tuple[Path, ...],
    modes: tuple[str, ...] | None,
    seeds: int | None,
    stragglers: tuple[str, ...] | None,
    batches: tuple[str, ...] | None,
    target_score: float | None,
    seconds: float | None,
    baseline: str | None,
    output: Path,
    force: bool,
    tensorboard: bool,
    dry_run: bool,
) -> int:
    """Train several modes on the same work, or take the finished runs RUN_DIR, and write a report that compares them."""
    from ps_cluster.files import locks
    from ps_cluster.tools.compare import comparison_plan, comparison_run

    values = given.overrides()
    of_comparison = {
        "arms": [{"mode": mode} for mode in modes] if modes else None,
        "seeds": seeds,
        "stragglers": stragglers,
        "batches": batches,
        "target_score": target_score,
        "seconds": seconds,
    }
    changes = {name: value for name, value in of_comparison.items() if value is not None}
    if runs and (tensorboard or values or given.file or changes.keys() - {"target_score"}):
        raise UserError(
            "if finished runs are given, only --output, --target-score, --baseline and --force can be given too"
        )
    comparison = None if runs else comparison_plan.read_comparison(given.file, changes, given.overrides_of_all())
    if dry_run:
        return _print_plan(comparison)
    roots, arm_keys = list(runs), frozenset[str]()
    with locks.sole_use(output, "--output:", notify=print_line):
        if comparison is None:
            comparison_run.check_free_for_report(output)
        else:
            target_score, arm_keys = comparison.target_score, comparison.arm_keys
            roots, code = comparison_run.train_all(comparison, output, baseline=baseline, tensorboard=tensorboard)
            if code:
                print_error(f"stopped before all runs were trained; run the same command again to continue: {output}")
                return code
        from ps_cluster.tools.compare import comparison_report  # matplotlib takes half a second to import

        written = comparison_report.write_report(
            roots, output, target=target_score, baseline=baseline, force=force, arm_keys=arm_keys
        )
        comparison_report.print_report(written, make_console())
    return 0


def _print_plan(comparison: Comparison | None) -> int:
    """Print each run with its learning rate, in training order, then the number of runs."""
    from ps_cluster.launch import memory
    from ps_cluster.tools.compare.comparison_plan import planned_runs, training_order

    if comparison is None:
        raise UserError("--dry-run: finished runs are given, so nothing would be trained: leave --dry-run out")
    runs = training_order(planned_runs(comparison))
    for run in runs:
        rate = "that of compile()" if (given := run.config.optimizer.learning_rate) is None else f"{given:g}"
        print_line(f"{run.name}: learning rate {rate}{' (scaled)' if run.scaled else ''}")
    expected = memory.expected(run.config for run in runs)
    print_line(f"runs: {len(runs)}, one after the other; memory expected: {expected}; nothing was started")
    return 0
