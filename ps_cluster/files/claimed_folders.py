"""Claim a folder for one piece of work, so that only a command with the same plan can continue this work.

A file in the folder holds the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.locks import LOCK, is_empty
from ps_cluster.files.writing import write_whole


def check_unclaimed(output: Path, plan: str, noun: str, besides: str = LOCK) -> None:
    """Raise UserError if the folder `output` is not empty, but does not contain the file `plan`.

    `plan`: the name of the file that holds the plan of the work. `noun`: the kind of work, e.g. "comparison".
    `besides`: the name of a file that may be in the folder already.
    """
    if not (output / plan).is_file() and not is_empty(output, besides=besides):
        raise UserError(f"--output: '{output}' is not empty and holds no {noun}: choose another folder")


def claim(
    output: Path,
    plan: str,
    content: str,
    noun: str,
    *,
    besides: str = LOCK,
    extends: Callable[[Path], bool] = lambda file: False,
) -> None:
    """Write the plan of the work into the folder `output`, whose lock the caller holds.

    Args:
      plan: the name of the plan's file.
      content: the text of the plan.
      noun: the kind of work, e.g. "comparison".
      besides: the name of a file that may be in the folder already.
      extends: a function that is called if the folder already holds a different plan. It gets the path of that plan,
        and returns whether the new plan only adds work to it. If so, the new plan replaces the other one.
    Raises:
      UserError: the folder holds another plan, or has files but no plan, or can't be written.
    """
    file = output / plan
    try:
        if file.is_file():
            untrusted.refuse_foreign(file)
            if file.read_bytes() != content.encode() and not extends(file):
                raise UserError(f"--output: '{output}' holds another {noun}: choose another folder, or remove this one")
        check_unclaimed(output, plan, noun, besides)
        write_whole(file, content)
    except OSError as error:
        raise UserError(f"--output: '{output}' can't be written: {error.strerror}") from error
