"""The command `ps-cluster evaluate`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ps_cluster.cli.options import FOLDER, Number, examples, option, trusted_code
from ps_cluster.cli.parts import log_format_option
from ps_cluster.config import LONGEST_SECONDS
from ps_cluster.config.modes import EVALUATOR, Task
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.report.closing_table import try_to_draw_results
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.logs import LOG_TASK
from ps_cluster.runs.run_dir import RunDir


@click.command(
    epilog=examples(
        "evaluate --checkpoint-dir runs/mine",
        "evaluate --checkpoint-dir runs/mine --once",
        "evaluate --checkpoint-dir runs/mine/checkpoints --wait-seconds 60",
    )
)
@trusted_code
@option("--checkpoint-dir", type=FOLDER, required=True, help="A run directory, or its checkpoints/ folder.")
@option("--once", is_flag=True, help="Score the newest checkpoint and return.")
@option(
    "--wait-seconds",
    type=Number(0, LONGEST_SECONDS),
    help="End after this time without news from the training; default: 600.",
)
@log_format_option
@option("--data-dir", type=FOLDER, help="Where the data set is; default: the copy that the run used.")
def evaluate(checkpoint_dir: Path, once: bool, wait_seconds: float | None, data_dir: Path | None) -> None:
    """Score each new checkpoint until training has ended."""
    if once and wait_seconds is not None:
        raise UserError("--wait-seconds: --once waits for nothing: leave one of them out")
    from ps_cluster.system import environment

    os.environ.update(environment.for_tensorflow(os.environ) | {LOG_TASK: str(Task(EVALUATOR, 0))})
    from ps_cluster.evaluation import evaluator
    from ps_cluster.evaluation.place import Place

    patience_s = evaluator.PATIENCE_S if wait_seconds is None else wait_seconds
    evaluator.evaluate(checkpoint_dir, once=once, data_dir=data_dir, patience_s=patience_s, notify=print_line)
    _draw_again(Place.of(Path(os.path.realpath(checkpoint_dir))).run_dir)


def _draw_again(run_dir: RunDir) -> None:
    """Draw the results of a run that has ended, from the new score."""
    if run_dir.summary.is_file() and not locks.is_held(run_dir.root):
        try_to_draw_results(run_dir, print_line)
