"""Remove run directories. Whatever is no run, is in use, or belongs to others, is left alone."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import click

from ps_cluster.cli.options import FOLDER, OneLineErrors, examples, option
from ps_cluster.cli.parts import JSON_FILE, confirmed, write_json_to
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files import locks, ownership
from ps_cluster.report.terminal import make_console, print_line
from ps_cluster.runs.run_dir import RunDir

WHAT = "run directory"


def check_removable(root: Path) -> RunDir:
    """Return the run directory at `root`.

    Raises:
      UserError: it is no run or a link to one, a command or a task works in it, or it belongs to another user.
    """
    if root.is_symlink():
        raise UserError(f"{WHAT} '{root}' is a link: name the folder itself")
    ownership.check_way(root, WHAT)
    run_dir = RunDir.open(root)
    if not run_dir.launcher_log.is_file():  # many other programs have a config.yaml
        raise UserError(f"{WHAT} '{root}' is not one: it holds no {run_dir.launcher_log.relative_to(run_dir.root)}")
    ownership.refuse_foreign(run_dir.root)
    if locks.is_held(run_dir.root):
        raise locks.InUse(f"{WHAT} '{root}' is in use: end its run first, or wait until it has ended")
    if locks.is_shared(run_dir.alive):
        raise locks.InUse(f"{WHAT} '{root}' is in use: tasks of its run are still there: end them, or try again")
    return run_dir


def remove(run_dir: RunDir, notify: Callable[[str], None]) -> None:
    """Remove a run directory that `check_removable` has returned.

    Raises:
      UserError: a command or a task of the run works in it by now.
      OSError: the system refuses.
    """
    with locks.sole_use(run_dir.root, WHAT, notify):
        if run_dir.alive.exists():
            locks.wait_for_sharers(run_dir.alive, f"{WHAT} '{run_dir.root}'")
        # Away with the whole first: what is left if this is stopped is no run that could be resumed.
        aside = run_dir.root.with_name(f".{run_dir.root.name}.{secrets.token_hex(8)}.removed")
        run_dir.root.rename(aside)
        shutil.rmtree(aside)


def size_of(run_dir: RunDir) -> int:
    """Return the bytes of all files of a run. Links are not followed."""
    return sum(path.lstat().st_size for path in run_dir.root.rglob("*") if path.is_file() and not path.is_symlink())


# The commands `ps-cluster runs [list] | show | rm`.

DEFAULT = Path("runs")


class ListsByItself(OneLineErrors):
    """A group that lists where no other command is named: `runs`, `runs FOLDER`, `runs --json -`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        hint = did_you_mean(first, self.commands)
        if hint and first not in self.commands and not Path(first).exists():
            raise UserError(f"runs: got '{first:.200}': {hint}There is no such folder to list either")
        if first not in self.commands and first not in ctx.help_option_names:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ListsByItself, epilog=examples("runs", "runs FOLDER", "runs show runs/mine", "runs rm runs/mine"))
def runs() -> None:
    """List, show and remove runs; without a command: list.

    A folder that is called like a command is written ./show.
    """


@runs.command("list", epilog=examples("runs list", "runs list other-folder", "runs list --json - | jq '.runs[].state'"))
@click.argument("folder", type=FOLDER, default=DEFAULT)
@option("--json", "json_file", type=JSON_FILE, metavar="FILE", help="Write it as JSON; -: print it so.")
def list_(folder: Path, json_file: Path | None) -> None:
    """List the runs in FOLDER with state, age, mode, data, network, score and speed."""
    from ps_cluster.report import run_list
    from ps_cluster.report.terminal import print_note

    here = folder.exists() or folder != DEFAULT
    found = run_list.listed_runs(folder, print_note) if here else []
    if json_file and write_json_to(json_file, {"folder": str(folder.absolute()), "runs": run_list.as_json(found)}):
        return
    if found:
        run_list.print_runs(found, make_console())
    else:
        print_line(f"there are no runs in '{folder}'")


@runs.command(epilog=examples("runs show runs/mine", "runs show runs/mine --page", "runs show elsewhere/run"))
@click.argument("run", type=FOLDER)
@option("--page", is_flag=True, help="Draw its results/ again, then show it.")
def show(run: Path, page: bool) -> None:
    """Print the closing table of RUN again, and where its files are."""
    from ps_cluster.files.json_files import read_json
    from ps_cluster.report import run_list
    from ps_cluster.report.closing_table import print_closing_table
    from ps_cluster.runs.result_rows import Summary
    from ps_cluster.runs.run_dir import RunDir

    run_dir = RunDir.open(run)
    if page:
        _draw(run_dir)
    listed, console = run_list.read_listed(run_dir), make_console()
    if listed.state in (run_list.RUNNING, run_list.UNKNOWN):
        run_list.print_unfinished(listed, run_dir, console)
    else:
        print_closing_table(read_json(run_dir.summary, Summary).model_dump(mode="json"), run_dir, console)


@runs.command(epilog=examples("runs rm runs/mine", "runs rm runs/20260101-* --yes", "runs rm runs/first runs/second"))
@click.argument("names", nargs=-1, required=True, metavar="RUN...", type=FOLDER)
@option("--yes", is_flag=True, help="Remove without asking.")
def rm(names: tuple[Path, ...], yes: bool) -> None:
    """Remove runs with all their files.

    A run that goes on is refused, and so is a folder that is no run: then nothing is removed.
    """
    from ps_cluster.report.data_tables import megabytes

    chosen = list({run.root: run for run in map(check_removable, names)}.values())
    for run_dir in chosen:
        print_line(f"{megabytes(size_of(run_dir))}  {run_dir.root}")
    if not yes and not confirmed(f"Remove {'it' if len(chosen) == 1 else f'these {len(chosen)} runs'}?"):
        print_line("nothing was removed")
        return
    for run_dir in chosen:
        remove(run_dir, print_line)
        print_line(f"removed {run_dir.root}")


def _draw(run_dir: RunDir) -> None:
    from ps_cluster.files import locks
    from ps_cluster.report.closing_table import draw_results

    with locks.sole_use(run_dir.root, WHAT, print_line):
        draw_results(run_dir, print_line)
