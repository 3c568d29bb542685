"""The command `ps-cluster evaluate`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ps_cluster.command_line import FOLDER, Number, option, trusted_code
from ps_cluster.config import LONGEST_SECONDS
from ps_cluster.errors import UserError
from ps_cluster.reporting.terminal import print_line


@click.command()
@trusted_code
@option("--checkpoint-dir", type=FOLDER, required=True, help="A run directory, or its checkpoints/ folder.")
@option("--once", is_flag=True, help="Score the newest checkpoint and return.")
@option(
    "--wait-seconds",
    type=Number(0, LONGEST_SECONDS),
    help="End after this time without news from the training; default: 600.",
)
@option("--data-dir", type=FOLDER, help="Where the data set is; default: the copy that the run used.")
def evaluate(checkpoint_dir: Path, once: bool, wait_seconds: float | None, data_dir: Path | None) -> None:
    """Score each new checkpoint until training has ended."""
    if once and wait_seconds is not None:
        raise UserError("--wait-seconds: --once waits for nothing: leave one of them out")
    from ps_cluster.processes import environment

    os.environ.update(environment.for_tensorflow(os.environ))
    from ps_cluster.evaluation import evaluator

    patience_s = evaluator.PATIENCE_S if wait_seconds is None else wait_seconds
    evaluator.evaluate(checkpoint_dir, once=once, data_dir=data_dir, patience_s=patience_s, notify=print_line)
