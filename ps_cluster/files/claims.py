"""Claim a folder for one piece of work, whose plan is a file in it: the same command goes on, another one is refused."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.files import locks, ownership
from ps_cluster.files.writing import write_whole


def check_unclaimed(output: Path, plan: str, noun: str, besides: str = locks.LOCK) -> None:
    """Raise UserError where a folder holds something, but no plan.

    Args:
      plan: the name of its file. noun: of the work, e.g. "comparison". besides: a name that may be there already.
    """
    if not (output / plan).is_file() and not locks.is_empty(output, besides=besides):
        raise UserError(f"--output: '{output}' is not empty and holds no {noun}: choose another")


def claim(
    output: Path, plan: str, content: str, noun: str, *, besides: str = locks.LOCK, same: tuple[str, ...] = ()
) -> None:
    """Write the plan of the work into its folder, if it has none or this one.

    Args:
      output: the caller holds its lock (files/locks.py).
      plan, noun, besides: as for `check_unclaimed`.
      same: other texts that mean the same plan.
    Raises:
      UserError: the folder holds another plan, or something else, or can't be written.
    """
    file = output / plan
    try:
        if file.is_file():
            ownership.refuse_foreign(file)
        if file.is_file() and file.read_text(encoding="utf-8") not in (content, *same):
            raise UserError(f"--output: '{output}' holds another {noun}: choose another, or remove it")
        check_unclaimed(output, plan, noun, besides)
        write_whole(file, content)
    except OSError as error:
        raise UserError(f"--output: '{output}' can't be written: {error.strerror}") from error
