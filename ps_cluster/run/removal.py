"""Remove run directories. Whatever is no run, is in use, or belongs to others, is left alone."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.files import locks, ownership
from ps_cluster.run.run_dir import RunDir

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
