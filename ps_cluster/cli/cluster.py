"""The command `ps-cluster cluster show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ps_cluster.cli.options import (
    FOLDER,
    OUTPUT_FILE,
    HelpByGroups,
    OneLineErrors,
    config_options,
    examples,
    layered_config,
    option,
    refuse_others,
    set_option,
    trusted_code,
)
from ps_cluster.cli.parts import JSON_FILE, write_json_to
from ps_cluster.report.terminal import make_console, print_line


@click.group(
    cls=OneLineErrors,
    epilog=examples("cluster show", "cluster show runs/mine", "cluster show --workers 4 --ps 2 --tf-config"),
)
def cluster() -> None:
    """Show a cluster."""


@cluster.command(
    cls=HelpByGroups,
    epilog=examples(
        "cluster show", "cluster show runs/mine --svg cluster.svg", "cluster show --mode sync --workers 2 --tf-config"
    ),
)
@click.argument("what", type=FOLDER, required=False, metavar="[CONFIG|RUN_DIR]")
@trusted_code
@config_options("--workers", "--ps", "--mode", "--evaluator/--no-evaluator")
@set_option
@option("--svg", type=OUTPUT_FILE, metavar="FILE.svg", help="Write the picture.")
@option("--json", "json_file", type=JSON_FILE, metavar="FILE", help="Write it as JSON; -: print it so.")
@option("--tf-config", is_flag=True, help="Print TF_CONFIG of each task, to copy, and nothing else.")
@option("--devices", is_flag=True, help="Ask TensorFlow which devices a task has here; takes some seconds.")
@click.pass_context
def show(
    context: click.Context,
    /,
    what: Path | None,
    svg: Path | None,
    json_file: Path | None,
    tf_config: bool,
    devices: bool,
    assignments: tuple[str, ...],
    **options: Any,
) -> None:
    """Show jobs, tasks, addresses and devices.

    Of a run with the state of each process; of a file of settings, or of the defaults, as `run` would start it.
    """
    from ps_cluster.files.writing import write_whole
    from ps_cluster.launch import overview
    from ps_cluster.report import cluster as cluster_view

    found = overview.ask_for_devices() if devices else overview.KNOWN_DEVICES
    if what and what.is_dir():
        shown = ("what", "svg", "json_file", "tf_config", "devices")
        refuse_others(context, *shown, because=f"'{what}' is a run directory, which shows")
        view = overview.of_run(what, found)
    else:
        view = overview.of_config(layered_config(what, assignments, options), found)
    if svg:
        write_whole(svg, cluster_view.draw_cluster(view))
    if json_file and write_json_to(json_file, view.to_json()):
        return
    if tf_config:
        for line in cluster_view.lines_of_tf_config(view.tasks):
            print_line(line)
        return
    cluster_view.print_cluster(view, make_console())
    if svg:
        print_line(f"written: {svg}")
