"""The commands that show, change or remove a run: `ps-cluster runs`, `scale`, `health` and `cluster`."""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ps_cluster.cli.command_line import (
    OneLineErrors,
    command,
    confirmed,
    examples,
    json_option,
    option,
    write_json_to,
    yes_option,
)
from ps_cluster.cli.options import GivenSettings, config_options, refuse_others, set_option, trusted_code
from ps_cluster.cli.value_types import INPUT_PATH, OUTPUT_FILE, Integer, Number, OneOf
from ps_cluster.config import LONGEST_SECONDS, MOST_WORKERS
from ps_cluster.config.tasks import EVALUATOR, TRAINING_TYPES, Task
from ps_cluster.errors import FAILED, UserError, did_you_mean
from ps_cluster.files import locks, untrusted
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import make_console, print_line, print_note
from ps_cluster.runs.run_dir import RUN_DIRECTORY, RunDir

if TYPE_CHECKING:
    from ps_cluster.report.health import Probe

# Remove run directories. A folder that is not a run, is in use, or belongs to another user is refused.


def check_removable(root: Path) -> RunDir:
    """Return the run directory at `root`. Raises UserError if it may not be removed, e.g. because it is in use."""
    if root.is_symlink():
        raise UserError(f"run directory '{root}' is a link: name the folder itself")
    untrusted.refuse_foreign_symlinks(root, RUN_DIRECTORY)
    run_dir = RunDir.open(root)
    if not run_dir.launcher_log.is_file():  # many other programs have a config.yaml
        raise UserError(f"'{root}' is not a run directory: it has no {run_dir.launcher_log.relative_to(run_dir.root)}")
    untrusted.refuse_foreign(run_dir.root)
    if locks.is_held(run_dir.root):
        raise locks.InUse(f"run directory '{root}' is in use: end its run first, or wait until it has ended")
    if locks.is_held(run_dir.alive):
        raise locks.InUse(
            f"run directory '{root}' is in use: tasks of its run are still alive: end them, or try again later"
        )
    return run_dir


def remove(run_dir: RunDir, notify: Notify) -> None:
    """Remove a run directory that `check_removable` has returned.

    Raises:
      UserError: a command or a task of the run has begun to work in the directory meanwhile.
      OSError: the system refuses the removal.
    """
    with locks.sole_use(run_dir.root, RUN_DIRECTORY, notify):
        if run_dir.alive.exists():
            locks.wait_for_sharers(run_dir.alive, f"run directory '{run_dir.root}'")
        # Rename first, so that an interrupted removal leaves nothing that looks like a run to resume.
        aside = run_dir.root.with_name(f".{run_dir.root.name}.{secrets.token_hex(8)}.removed")
        run_dir.root.rename(aside)
        shutil.rmtree(aside)


# `ps-cluster runs [list] | page | show | rm`

DEFAULT = Path("runs")


class ListsByDefault(OneLineErrors):
    """A group whose default command is `list`. For example, `runs FOLDER` means `runs list FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        hint = did_you_mean(first, self.commands)
        if hint and first not in self.commands and not Path(first).exists():
            raise UserError(f"runs: got '{first:.200}': {hint}There is also no folder of this name to list")
        if first not in self.commands and first not in ctx.help_option_names:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=ListsByDefault,
    epilog=examples("runs", "runs FOLDER", "runs page", "runs show runs/mine", "runs rm runs/mine"),
)
def runs() -> None:
    """List, compare, show and remove runs. Without a command, list them.

    If a folder has the name of a command, such as show, write ./show.
    """


@runs.command("list", epilog=examples("runs list", "runs list other-folder", "runs list --json - | jq '.runs[].state'"))
@click.argument("folder", type=INPUT_PATH, default=DEFAULT)
@json_option("list")
def list_(folder: Path, json_file: Path | None) -> None:
    """List the runs in FOLDER with state, age, mode, data, network, score and speed."""
    from ps_cluster.report import run_list

    here = folder.exists() or folder != DEFAULT
    found = run_list.listed_runs(folder, print_note) if here else []
    if json_file and write_json_to(json_file, {"folder": str(folder.absolute()), "runs": run_list.as_json(found)}):
        return
    if found:
        run_list.print_runs(found, make_console())
    else:
        print_line(f"there are no runs in '{folder}'")


@runs.command(
    "page", epilog=examples("runs page", "runs page other-folder --output all.html", "runs page other-folder --once")
)
@click.argument("folder", type=INPUT_PATH, default=DEFAULT)
@option("--output", type=OUTPUT_FILE, default=Path("runs.html"), metavar="FILE.html", help="The page to write.")
@option("--once", is_flag=True, help="Write the page only once, even while a run trains.")
def page_(folder: Path, output: Path, once: bool) -> int:
    """Write one page on which you can filter the runs in FOLDER and compare their curves and settings.

    While a run trains, the command writes the page again every few seconds, and an open browser reloads it. The command
    ends when no run trains any more, or with Ctrl-C.
    """
    from ps_cluster.report.runs_page import REWRITE_S, RunsPage, keep_writing
    from ps_cluster.system.stop_signals import StopRequests

    page = RunsPage(folder, output, print_note)
    found = page.poll() if folder.exists() or folder != DEFAULT else []
    if not found:
        print_line(f"there are no runs in '{folder}'")
        return 0
    stays = page.is_live(found) and not once
    page.write(found, REWRITE_S if stays else None)
    print_line(f"written: {output}")
    if not stays:
        return 0
    with StopRequests() as stop:
        print_line("a run trains: the page is written again every few seconds, until no run trains or you press Ctrl-C")
        keep_writing(page, stop.wait)
    return stop.exit_code if stop.count else 0


@runs.command(epilog=examples("runs show runs/mine", "runs show runs/mine --page", "runs show elsewhere/run"))
@click.argument("run", type=INPUT_PATH)
@option("--page", is_flag=True, help="First draw the page in results/ again.")
def show(run: Path, page: bool) -> None:
    """Print the closing table of RUN again, and where its files are."""
    from ps_cluster.files.json_files import read_json
    from ps_cluster.report import run_list
    from ps_cluster.report.closing_table import print_numbers, print_places
    from ps_cluster.report.drawing import draw_results
    from ps_cluster.runs.result_rows import Summary

    run_dir = RunDir.open(run)
    if page:
        with locks.sole_use(run_dir.root, RUN_DIRECTORY, print_line):
            draw_results(run_dir, print_line)
    listed, console = run_list.list_run(run_list.read_files(run_dir)), make_console()
    if listed.state in (run_list.RUNNING, run_list.UNKNOWN):
        run_list.print_unfinished(listed, run_dir, console)
    else:
        summary = read_json(run_dir.summary, Summary)
        print_numbers(summary, console)
        print_places(summary, run_dir, console)


@runs.command(epilog=examples("runs rm runs/mine", "runs rm runs/20260101-* --yes", "runs rm runs/first runs/second"))
@click.argument("names", nargs=-1, required=True, metavar="RUN...", type=INPUT_PATH)
@yes_option
def rm(names: tuple[Path, ...], yes: bool) -> None:
    """Remove runs with all their files.

    If one of the runs is still in use, or one of the folders is not a run, nothing is removed.
    """
    from ps_cluster.report.terminal import megabytes

    chosen = list({run.root: run for run in map(check_removable, names)}.values())
    for run_dir in chosen:
        size_bytes = sum(path.lstat().st_size for path in run_dir.root.rglob("*") if not path.is_dir())
        print_line(f"{megabytes(size_bytes)}  {run_dir.root}")
    if not yes and not confirmed(len(chosen), "runs"):
        return
    for run_dir in chosen:
        remove(run_dir, print_line)
        print_line(f"removed {run_dir.root}")


@command(
    epilog=examples("scale runs/mine --workers 5", "scale runs/mine --workers 1", "scale elsewhere/run --workers 2")
)
@click.argument("run_dir", type=INPUT_PATH)
@option("--workers", type=Integer(1, MOST_WORKERS), required=True, help="The new number of workers.")
def scale(run_dir: Path, workers: int) -> None:
    """Start or stop workers of the run in RUN_DIR while it trains.

    The number has to be between the --min-workers and --max-workers with which you started the run. When a worker
    is stopped, the other workers take over its steps. No step is lost or applied twice. In a mode with a fixed number of
    workers, the command fails and tells you the reason.
    """
    from ps_cluster.runs.scale_requests import ask

    run = RunDir.open(run_dir)
    untrusted.refuse_foreign(run.config)
    print_line(ask(run, workers))


@command(
    epilog=examples(
        "health runs/mine",
        "health shared/run --type worker --index 1 --probe live",
        "health shared/run --type chief --index 0 --max-age 120 --json",
    )
)
@click.argument("run_dir", type=INPUT_PATH)
@option(
    "--type",
    "kind",
    type=OneOf((*TRAINING_TYPES, EVALUATOR)),
    help="With --index: check only one task, which has this type.",
)
@option("--index", type=Integer(0), help="The index of this task among those of its type, from 0.")
@option(
    "--probe",
    type=OneOf(("live", "ready")),
    default="ready",
    help="live: the process exists, its port is open, and the leader writes its files. ready: training makes progress too.",
)
@option(
    "--max-age",
    type=Number(0, LONGEST_SECONDS),
    default=60.0,
    help="Longest time in seconds without a sign of life from the leader, or without an update of the training.",
)
@option(
    "--max-save-age",
    type=Number(0, LONGEST_SECONDS),
    help="Greatest age in seconds of the newest checkpoint or snapshot; default: no limit.",
)
@option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def health(
    run_dir: Path,
    kind: str | None,
    index: int | None,
    probe: Probe,
    max_age: float,
    max_save_age: float | None,
    as_json: bool,
) -> int:
    """Tell a probe whether a run, or one task of it, is alive and makes progress.

    The exit code is 0 if nothing is wrong, else 1. Call the command on the machine or in the container in which the run
    or the task runs.
    """
    from ps_cluster.report import health as answers

    if (kind is None) != (index is None):
        raise UserError("--type, --index: give both or neither")
    task = None if kind is None or index is None else Task(kind, index)
    answer = answers.ask(run_dir, probe, task, answers.HealthBounds(max_age, max_save_age))
    if as_json:
        print(json.dumps(answer.to_json()))
    else:
        print_line(answer.line)
    return 0 if answer.good else FAILED


@click.group(
    cls=OneLineErrors,
    epilog=examples("cluster show", "cluster show runs/mine", "cluster show --workers 4 --ps 2 --tf-config"),
)
def cluster() -> None:
    """Show a cluster."""


@cluster.command(
    "show",
    epilog=examples(
        "cluster show", "cluster show runs/mine --svg cluster.svg", "cluster show --mode sync --workers 2 --tf-config"
    ),
)
@click.argument("what", type=INPUT_PATH, required=False, metavar="[CONFIG|RUN_DIR]")
@trusted_code
@config_options("--workers", "--ps", "--mode", "--evaluator/--no-evaluator")
@set_option
@option("--svg", type=OUTPUT_FILE, metavar="FILE.svg", help="Draw the cluster to this file.")
@json_option("cluster")
@option("--tf-config", is_flag=True, help="Print only the TF_CONFIG of each task, to copy.")
@click.pass_context
def show_cluster(
    context: click.Context,
    given: GivenSettings,
    /,
    what: Path | None,
    svg: Path | None,
    json_file: Path | None,
    tf_config: bool,
) -> None:
    """Show the jobs, tasks, addresses and devices of a cluster.

    For a run directory, the state of each process is shown too. For a file of settings, or without an argument, the
    cluster that `run` would start is shown.
    """
    from ps_cluster.files.writing import write_whole
    from ps_cluster.launch import overview
    from ps_cluster.launch.cluster_picture import draw_cluster

    if what and what.is_dir():
        shown = ("what", "svg", "json_file", "tf_config")
        refuse_others(context, *shown, because=f"'{what}' is a run directory, and a run is shown with its own settings")
        view = overview.of_run(what)
    else:
        view = overview.of_config(replace(given, file=what).resolved().config)
    if svg:
        write_whole(svg, draw_cluster(view))
    if json_file and write_json_to(json_file, view.to_json()):
        return
    if tf_config:
        for line in overview.lines_of_tf_config(view.tasks):
            print_line(line)
        return
    overview.print_cluster(view, make_console())
    if svg:
        print_line(f"written: {svg}")
