"""The commands `ps-cluster sweep` and `ps-cluster ensemble`: many runs, several at once."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.cli.command_line import command, examples, option
from ps_cluster.cli.options import (
    GivenSettings,
    config_and_set_options,
    config_options,
    tensorboard_option,
    trusted_code,
)
from ps_cluster.cli.value_types import LIST, OUTPUT_FOLDER, Integer, OneOf
from ps_cluster.report.terminal import print_line
from ps_cluster.tools.sweep.methods import MOST_TRIALS, SEARCH_METHODS, TRIALS
from ps_cluster.tools.sweep.space import parse_varied

RUN_OPTIONS = ("--dataset", "--data-dir", "--model", "--mode", "--epochs", "--steps", "--batch-size", "--precision")


@command(
    epilog=examples(
        "sweep --vary optimizer.learning_rate=0.01..1:log --epochs 1",
        "sweep --vary optimizer.learning_rate=0.1,0.3 --method grid --model tutorial_cnn",
        "sweep --vary training.batch_size_per_worker=32..256 --method halving --trials 20",
    ),
)
@trusted_code
@option(
    "--vary",
    multiple=True,
    metavar="KEY=VALUES",
    help="A setting and its values: 0.01..1, 0.01..1:log (on a logarithmic scale), 16..64 (whole numbers), 0.1..0.9:5 "
    "(five values), or 64,128,256; repeatable.",
)
@option(
    "--method",
    type=OneOf(list(SEARCH_METHODS)),
    help="How trials are chosen: "
    + "; ".join(f"{method.name}: {method.summary}" for method in SEARCH_METHODS.values())
    + "; default: random.",
)
@option(
    "--trials",
    type=Integer(1, MOST_TRIALS),
    help=f"Number of trials; default: {TRIALS}, or all combinations of a grid.",
)
@option("--workers", "at_once", type=Integer(1, 8), default=2, help="Number of trials that are trained at once.")
@option(
    "--output",
    type=OUTPUT_FOLDER,
    default=Path("sweep"),
    help="Folder of trials and results; an unfinished sweep in it is continued.",
)
@tensorboard_option
@option("--dry-run", is_flag=True, help="Print the trials; start nothing.")
@config_options(*RUN_OPTIONS)
@option("--seed", type=Integer(0, 2**31 - 1), help="Seed for drawing the trials; default: 0.")
@config_and_set_options
def sweep(
    given: GivenSettings,
    vary: tuple[str, ...],
    method: str | None,
    trials: int | None,
    at_once: int,
    output: Path,
    seed: int | None,
    tensorboard: bool,
    dry_run: bool,
) -> int:
    """Search for good settings: train many trials, several at once, and judge them on held-out training examples."""
    from ps_cluster.files import locks
    from ps_cluster.tools.sweep import sweep_run
    from ps_cluster.tools.sweep.sweep_plan import read_sweep

    of_sweep = {"vary": parse_varied(vary) or None, "method": method, "trials": trials, "seed": seed}
    changes = {name: value for name, value in of_sweep.items() if value is not None}
    plan = read_sweep(given.file, changes, given.overrides_of_all())
    if dry_run:
        for line in sweep_run.preview(plan, at_once):
            print_line(line)
        return 0
    with locks.sole_use(output, "--output:", notify=print_line):
        return sweep_run.run_sweep(plan, output, at_once, tensorboard=tensorboard)


@command(
    epilog=examples(
        "ensemble --members 4",
        "ensemble --models tutorial_cnn,resnet_small --members 2 --epochs 3",
        "ensemble --members 5 --split bootstrap --workers 2 --output my-ensemble",
    ),
)
@trusted_code
@option(
    "--members",
    "seeds",
    type=Integer(1, 32),
    help="Number of seeds of each network; default: 4, or 1 with several --models.",
)
@option("--models", type=LIST, help="Networks, separated by commas; default: one, with several seeds.")
@option(
    "--split",
    type=OneOf(["all", "shards", "bootstrap"]),
    default="all",
    help="Training examples of each member. all: every example. shards: a separate part of the examples. bootstrap: as "
    "many examples as the training set has, drawn with replacement.",
)
@option("--workers", "at_once", type=Integer(1, 8), default=2, help="Number of members that are trained at once.")
@option(
    "--output",
    type=OUTPUT_FOLDER,
    default=Path("ensemble"),
    help="Folder of members and results; an unfinished ensemble in it is continued.",
)
@option("--dry-run", is_flag=True, help="Print the members; start nothing.")
@config_options(*RUN_OPTIONS)
@config_and_set_options
def ensemble(
    given: GivenSettings,
    seeds: int | None,
    models: tuple[str, ...] | None,
    split: str,
    at_once: int,
    output: Path,
    dry_run: bool,
) -> int:
    """Train several networks, several at once, and join them into one model that averages their probabilities."""
    from ps_cluster.files import locks
    from ps_cluster.tools.sweep import ensemble_plan, ensemble_run

    values = given.overrides_of_all()
    plan = ensemble_plan.read_ensemble(given.file, values, models=models, seeds=seeds, split=split)
    if dry_run:
        for line in ensemble_plan.preview(plan, at_once):
            print_line(line)
        return 0
    with locks.sole_use(output, "--output:", notify=print_line):
        return ensemble_run.run_ensemble(plan, output, at_once)
