"""The command `ps-cluster ensemble`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ps_cluster.cli.options import (
    LIST,
    OUTPUT_FOLDER,
    OneOf,
    Whole,
    config_layers,
    config_options,
    examples,
    option,
    overrides_of_all,
    trusted_code,
)
from ps_cluster.report.terminal import print_line


@click.command(
    epilog=examples(
        "ensemble --members 4",
        "ensemble --models tutorial_cnn,resnet_small --members 2 --epochs 3",
        "ensemble --members 5 --split bootstrap --workers 2 --output my-ensemble",
    )
)
@trusted_code
@option("--members", "seeds", type=Whole(1, 32), help="Seeds of each network; default: 4, with several --models 1.")
@option("--models", type=LIST, help="Networks, separated by commas; default: one, with several seeds.")
@option(
    "--split",
    type=OneOf(["all", "shards", "bootstrap"]),
    default="all",
    help="The training examples of a member: all; a part of its own; as many as there are, drawn with replacement.",
)
@option("--workers", "at_once", type=Whole(1, 8), default=2, help="How many members are trained at once.")
@option(
    "--output",
    type=OUTPUT_FOLDER,
    default=Path("ensemble"),
    help="Folder of members and results; an unfinished ensemble in it is continued.",
)
@option("--dry-run", is_flag=True, help="Print the members; start nothing.")
@config_options("--dataset", "--data-dir", "--model", "--mode", "--epochs", "--steps", "--batch-size", "--precision")
@config_layers
def ensemble(
    seeds: int | None,
    models: tuple[str, ...] | None,
    split: str,
    at_once: int,
    output: Path,
    dry_run: bool,
    file: Path | None,
    assignments: tuple[str, ...],
    **options: Any,
) -> int:
    """Train several networks, several at once, and join them into one model that averages their probabilities."""
    from ps_cluster.files import locks
    from ps_cluster.tools.ensemble import assembling
    from ps_cluster.tools.ensemble import plan as ensemble_plan

    values = overrides_of_all(assignments, options)
    plan = ensemble_plan.read_ensemble(file, values, models=models, seeds=seeds, split=split)
    if dry_run:
        for line in ensemble_plan.preview(plan, at_once):
            print_line(line)
        return 0
    with locks.sole_use(output, "--output:", notify=print_line):
        return assembling.run_ensemble(plan, output, at_once)
