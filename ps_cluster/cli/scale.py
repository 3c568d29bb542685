"""The command `ps-cluster scale`."""

from __future__ import annotations

from pathlib import Path

import click

from ps_cluster.cli.options import FOLDER, Whole, examples, option
from ps_cluster.config import MOST_WORKERS
from ps_cluster.report.terminal import print_line


@click.command(
    epilog=examples("scale runs/mine --workers 5", "scale runs/mine --workers 1", "scale elsewhere/run --workers 2")
)
@click.argument("run_dir", type=FOLDER)
@option("--workers", type=Whole(1, MOST_WORKERS), required=True, help="How many workers there are to be.")
def scale(run_dir: Path, workers: int) -> None:
    """Start or stop workers of the run in RUN_DIR while it trains.

    The run says between which numbers, when it starts: --min-workers and --max-workers. A worker that stops hands its
    steps to others; no step is lost or applied twice. Modes async and bounded.
    """
    from ps_cluster.config import load_config
    from ps_cluster.errors import UserError
    from ps_cluster.files import ownership
    from ps_cluster.launch.rules import refusal
    from ps_cluster.runs.run_dir import RunDir
    from ps_cluster.runs.scale_desk import ask

    run = RunDir.open(run_dir)
    ownership.refuse_foreign(run.config)
    if line := refusal(load_config(run.config), workers):
        raise UserError(line)
    print_line(ask(run, workers))
