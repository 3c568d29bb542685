"""The command `ps-cluster run`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from ps_cluster.command_line import (
    FOLDER,
    config_layers,
    config_options,
    layered_config,
    option,
    overrides,
    refuse_others,
    trusted_code,
)


@click.command()
@trusted_code
@config_options()
@config_layers
@option("--run-dir", type=FOLDER, help="Folder of all files of the run; default: a new one in runs/.")
@option("--resume", type=FOLDER, metavar="RUN_DIR", help="Continue an earlier run; --epochs or --steps make it longer.")
@option("--profile", is_flag=True, help="Write a trace of every step, and print where the time went.")
@click.pass_context
def run(
    context: click.Context,
    /,
    file: Path | None,
    assignments: tuple[str, ...],
    run_dir: Path | None,
    resume: Path | None,
    profile: bool,
    **options: Any,
) -> int:
    """Train on a cluster of processes on this machine."""
    from ps_cluster.cluster import local_run
    from ps_cluster.processes.usage import age_seconds
    from ps_cluster.reporting.progress import make_view

    began = time.monotonic() - age_seconds(os.getpid())
    if resume:
        allowed = ("resume", "profile", "training__epochs", "training__steps")
        refuse_others(context, *allowed, because="--resume goes on with")
        more = overrides((), options)
        root, code = resume, local_run.resume_run(resume, more, view=make_view(), began=began)
    else:
        config = layered_config(file, assignments, options)
        root = run_dir or local_run.new_root(config.mode.name, config.model.name)
        code = local_run.start_run(config, root, view=make_view(), began=began)
    if profile and code == 0:
        _print_profile(root)
    return code


def _print_profile(root: Path) -> None:
    from ps_cluster.cluster import local_run
    from ps_cluster.files import locks
    from ps_cluster.reporting import trace
    from ps_cluster.reporting.terminal import make_console
    from ps_cluster.run.run_dir import RunDir

    run_dir = RunDir(root.resolve())
    with locks.sole_use(root, local_run.WHAT, notify=lambda line: None):  # the run already printed this notice
        trace.write_trace(run_dir)
    trace.print_shares(run_dir, make_console())
