"""Claim the lead of a run: a numbered file for each leader that ever was. The newest leader is the only one.

Two leaders may live at once: a scheduler starts a new one while the old one's machine can't be reached. So each leader
claims the next number before it writes anything, and asks before each rename and removal whether a newer one is there
(files/fence.py). A lock can't do this: it is held by a process that is only frozen, and not every file system has one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.writing import open_to_write
from ps_cluster.run.run_dir import RunDir

_NAME = re.compile(r"epoch-(\d{6,9})\.json")
_MOST_TRIES = 1000


class Superseded(RunFailed):
    """A newer leader has taken over the run."""


@dataclass(frozen=True)
class Claim:
    """One leader's claim of a run directory. `epoch` counts the leaders from 1."""

    folder: Path
    epoch: int

    def check(self) -> None:
        """Raise Superseded where a newer leader has made its claim."""
        # Claims have no gaps, so the next one tells. One look at one file is cheap also in a shared folder.
        if _path(self.folder, self.epoch + 1).exists():
            raise Superseded(
                f"a newer leader (epoch {_newest(self.folder)}) has taken over '{self.folder.parent}'; this one is of epoch "
                f"{self.epoch} and stops without writing anything"
            )


def claim(run_dir: RunDir) -> Claim:
    """Claim the next epoch of a run directory. Raises UserError where the folder can't be written."""
    try:
        run_dir.leaders.mkdir(mode=0o755, parents=True, exist_ok=True)
        for _ in range(_MOST_TRIES):
            epoch = _newest(run_dir.leaders) + 1
            with contextlib.suppress(FileExistsError):
                _create(_path(run_dir.leaders, epoch))
                return Claim(run_dir.leaders, epoch)
    except OSError as error:
        raise UserError(f"run directory '{run_dir.root}' can't be written: {error.strerror}") from error
    raise UserError(
        f"run directory '{run_dir.root}' is claimed by other leaders all the time: stop them, and try again"
    )


def _create(path: Path) -> None:
    who = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
    descriptor = open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with contextlib.suppress(OSError):  # a full disk: the name is the claim, the content is for people
        os.write(descriptor, json.dumps(who).encode())
    os.close(descriptor)


def _newest(folder: Path) -> int:
    found = (int(match[1]) for match in map(_NAME.fullmatch, os.listdir(folder)) if match)
    return max(found, default=0)


def _path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:06d}.json"
