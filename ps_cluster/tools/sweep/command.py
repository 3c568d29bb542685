"""The command `ps-cluster sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ps_cluster.cli.options import (
    OUTPUT_FOLDER,
    OneOf,
    Whole,
    config_layers,
    config_options,
    examples,
    option,
    overrides_of_all,
    tensorboard_option,
    trusted_code,
)
from ps_cluster.report.terminal import print_line
from ps_cluster.tools.sweep.methods import MOST_TRIALS, SEARCH_METHODS, TRIALS


@click.command(
    epilog=examples(
        "sweep --vary optimizer.learning_rate=0.01..1:log --epochs 1",
        "sweep --vary optimizer.learning_rate=0.1,0.3 --method grid --model tutorial_cnn",
        "sweep --vary training.batch_size_per_worker=32..256 --method halving --trials 20",
    )
)
@trusted_code
@option(
    "--vary",
    multiple=True,
    metavar="KEY=VALUES",
    help="A setting and its values: 0.01..1, 0.01..1:log, 16..64 (whole), 0.1..0.9:5 (five of them), or 64,128,256; "
    "repeatable.",
)
@option(
    "--method",
    type=OneOf(list(SEARCH_METHODS)),
    help="How trials are chosen: "
    + "; ".join(f"{method.name}: {method.says}" for method in SEARCH_METHODS.values())
    + "; default: random.",
)
@option("--trials", type=Whole(1, MOST_TRIALS), help=f"How many trials; default: {TRIALS}, of a grid all.")
@option("--workers", "at_once", type=Whole(1, 8), default=2, help="How many trials are trained at once.")
@option(
    "--output",
    type=OUTPUT_FOLDER,
    default=Path("sweep"),
    help="Folder of trials and results; an unfinished sweep in it is continued.",
)
@tensorboard_option
@option("--dry-run", is_flag=True, help="Print the trials; start nothing.")
@config_options("--dataset", "--data-dir", "--model", "--mode", "--epochs", "--steps", "--batch-size", "--precision")
@option("--seed", type=Whole(0, 2**31 - 1), help="Seed of the drawing of trials; default: 0.")
@config_layers
def sweep(
    vary: tuple[str, ...],
    method: str | None,
    trials: int | None,
    at_once: int,
    output: Path,
    seed: int | None,
    tensorboard: bool,
    dry_run: bool,
    file: Path | None,
    assignments: tuple[str, ...],
    **options: Any,
) -> int:
    """Search for good settings: train many trials, several at once, and judge them on held-out training examples."""
    from ps_cluster.files import locks
    from ps_cluster.tools.sweep import plan as sweep_plan
    from ps_cluster.tools.sweep import sweeping
    from ps_cluster.tools.sweep.methods import parse_varied

    given = {"vary": parse_varied(vary) or None, "method": method, "trials": trials, "seed": seed}
    changes = {name: value for name, value in given.items() if value is not None}
    plan = sweep_plan.read_sweep(file, changes, overrides_of_all(assignments, options))
    if dry_run:
        from ps_cluster.tools.sweep import sweeping

        for line in sweeping.lines(plan, at_once):
            print_line(line)
        return 0
    with locks.sole_use(output, "--output:", notify=print_line):
        return sweeping.run_sweep(plan, output, at_once, tensorboard=tensorboard)
