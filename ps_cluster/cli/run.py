"""The command `ps-cluster run`."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ps_cluster.cli.command_line import OUTPUT, WORDS, command, examples, option
from ps_cluster.cli.options import (
    CHANGEABLE,
    METRICS_OPTIONS,
    GivenSettings,
    config_and_set_options,
    config_options,
    log_format_option,
    metrics_options,
    parameter_of,
    refuse_others,
    tensorboard_option,
    trusted_code,
)
from ps_cluster.cli.value_types import INPUT_PATH, OneOf
from ps_cluster.config import Resolved
from ps_cluster.config.merging import resolve_resumed
from ps_cluster.config.modes import MODES
from ps_cluster.config.sections import MODE
from ps_cluster.config.user_settings import variables, without_variables
from ps_cluster.errors import UserError
from ps_cluster.installation import PROGRAM
from ps_cluster.report.terminal import print_line

GRADIENTS = "evaluation.gradients"  # shown in TensorBoard


@command(
    epilog=examples(
        "run --workers 3 --ps 1",
        "run --mode bounded --max-staleness 2 --learning-rate 0.3 --augment flip,crop=4",
        "run --model tutorial_cnn --set schedule.kind=cosine --dry-run",
    ),
)
@trusted_code
@config_options()
@config_and_set_options
@option(
    "--run-dir", type=INPUT_PATH, group=OUTPUT, help="Folder for all files of the run; default: a new one in runs/."
)
@option(
    "--resume",
    type=INPUT_PATH,
    metavar="RUN_DIR",
    group=OUTPUT,
    help="Continue an earlier run. --epochs or --steps make it longer; --ps changes the number of parameter servers.",
)
@option(
    "--split",
    type=OneOf(sorted({mode.cluster.splits for mode in MODES})),
    group="Mode",
    help="What is divided among the workers. data: the batches, while each worker has the whole network. layers, "
    "width: the network, as in the mode of that name.",
)
@option(
    "--dry-run",
    is_flag=True,
    group=OUTPUT,
    help="Print the configuration and the origin of each value; start nothing.",
)
@option(
    "--callbacks",
    metavar="FILE.py:NAME",
    group=OUTPUT,
    help="Call these Keras callbacks at the end of each scored epoch. NAME: a callback, a list of callbacks, or a function "
    "that returns one of these.",
)
@option(
    "--try",
    "tries",
    is_flag=True,
    group=OUTPUT,
    help="Try everything in under a minute: check the settings, pack the data, train two updates per worker, score, export. "
    "Nothing is kept.",
)
@option("--profile", is_flag=True, group=OUTPUT, help="Write a trace of every step, and print where the time went.")
@tensorboard_option
@metrics_options
@log_format_option
@click.pass_context
def run(
    context: click.Context,
    given: GivenSettings,
    /,
    run_dir: Path | None,
    resume: Path | None,
    split: str | None,
    dry_run: bool,
    callbacks: str | None,
    tries: bool,
    profile: bool,
    tensorboard: bool,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Train on a cluster of processes on this machine."""
    from ps_cluster.launch import local_run
    from ps_cluster.report.metrics_server import with_metrics
    from ps_cluster.report.progress import make_view
    from ps_cluster.runs.logs import LAUNCHER
    from ps_cluster.runs.run_dir import RunDir
    from ps_cluster.system.run_processes import age_seconds

    watched = partial(with_metrics, port=metrics_port, host=metrics_host, task=LAUNCHER)
    began = time.monotonic() - age_seconds(os.getpid())
    if resume:
        changes = _changes_to_resumed(context, given, tensorboard=tensorboard)
        if dry_run:
            return _print_plan(resolve_resumed(RunDir.open(resume).config, changes, os.environ))
        with watched(make_view()) as view:
            code = local_run.resume_run(resume, changes, view=view, began=began, tensorboard=tensorboard)
        _print_what_was_asked_for(resume, profile=profile and code == 0)
        return code
    resolved = _resolve_new(given, split, tensorboard=tensorboard)
    config = resolved.config
    if dry_run:
        return _print_plan(resolved)
    if tries:
        from ps_cluster.api.command_try import try_run

        return try_run(context.meta[WORDS], config)
    root = run_dir or local_run.new_root(config.mode.name, config.model.name)
    if callbacks:
        from ps_cluster.api.command_callbacks import run_with_callbacks

        return run_with_callbacks(callbacks, context.meta[WORDS], resolved, root)
    with watched(make_view()) as view:
        code = local_run.start_run(config, root, view=view, began=began, tensorboard=tensorboard)
    _print_what_was_asked_for(root, profile=profile and code == 0)
    return code


def _changes_to_resumed(context: click.Context, given: GivenSettings, *, tensorboard: bool) -> dict[str, Any]:
    """Return the changes to the settings of a resumed run, by dotted key.

    Raises UserError if the user has given an option that can't be used with --resume.
    """
    allowed = ("resume", "dry_run", "profile", "tensorboard", *METRICS_OPTIONS, *map(parameter_of, CHANGEABLE))
    refuse_others(context, *allowed, because="--resume continues the run with its own settings")
    for name in variables(os.environ.keys() - without_variables(os.environ)):
        print_line(f"{name} is ignored: --resume continues the run with its own settings")
    return given.overrides() | ({GRADIENTS: True} if tensorboard else {})


def _resolve_new(given: GivenSettings, split: str | None, *, tensorboard: bool) -> Resolved:
    """Return the settings of a new run.

    `split`: the value of --split, e.g. "layers": what is divided among the workers. If exactly one mode divides this,
    and the user has not given --mode, that mode is chosen.
    """
    if tensorboard and not any(text.startswith(GRADIENTS) for text in given.assignments):
        given = replace(given, assignments=(*given.assignments, f"{GRADIENTS}=true"))
    splitting = [mode.name for mode in MODES if mode.cluster.splits == split]
    if len(splitting) == 1 and MODE.setting not in given.values:
        given = given.with_values({MODE.setting: splitting[0]})
    resolved = given.resolved()
    config = resolved.config
    if split and config.chosen_mode.cluster.splits != split:
        splits = f"mode {config.mode.name} splits the {config.chosen_mode.cluster.splits}"
        raise UserError(f"--split: got '{split}', but {splits}: leave out --split or the mode")
    return resolved


def _print_plan(resolved: Resolved) -> int:
    from ps_cluster.launch import dry_run
    from ps_cluster.system.limits import free_memory

    for line in dry_run.lines(resolved, free_memory()):
        print_line(line)
    return 0


def _print_what_was_asked_for(root: Path, *, profile: bool) -> None:
    """Print where the time of a run was spent, and on which devices its operations ran, if the user asked for this."""
    from ps_cluster.runs.run_dir import RUN_DIRECTORY, RunDir

    run_dir = RunDir(Path(os.path.realpath(root)))
    if profile:
        from ps_cluster.files import locks
        from ps_cluster.notices import ignore
        from ps_cluster.report import trace
        from ps_cluster.report.terminal import make_console

        with locks.sole_use(root, RUN_DIRECTORY, ignore):  # the run already printed this notice
            trace.write_trace(run_dir)
        trace.print_shares(run_dir, make_console())
    if run_dir.placement.is_file():  # with `mode.log_placement`
        from ps_cluster.report.placement import placement_lines

        for line in placement_lines(run_dir.placement):
            print_line(line)
        print_line(f"to see the closing table again: {PROGRAM} runs show {shlex.quote(str(root))}")
