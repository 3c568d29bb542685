"""Claim the leadership of a run, and describe how a leader was started.

Two leaders may run at the same time: a scheduler starts a new leader while the machine of the old one can't be reached. So
each leader claims the next number (its term) before it writes anything. Every leader has a numbered file, and only the
newest leader may write. Before each rename and removal a leader checks whether a newer claim exists (files/writing.py). A
lock can't replace the claim: a frozen process still holds its lock, and not every file system has locks.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.writing import open_to_write
from ps_cluster.runs.run_dir import RunDir

_MOST_TRIES = 1_000  # another leader may claim the same term at the same time
_NAME = re.compile(r"term-(\d{6,9})\.json")


class Superseded(RunFailed):
    """Raised if a newer leader has taken over the run."""


@dataclass(frozen=True)
class Claim:
    """The claim that one leader has made on a run directory. `term` counts the leaders from 1, as terms do in Raft."""

    folder: Path
    term: int

    def check(self) -> None:
        """Raise Superseded if a newer leader has made its claim."""
        # Claims have no gaps, so it is enough to look for the next one. This is cheap even in a shared folder.
        if _path(self.folder, self.term + 1).exists():
            raise Superseded(
                f"a newer leader (term {_newest(self.folder)}) has taken over '{self.folder.parent}'; this one has term "
                f"{self.term} and stops without writing anything"
            )


def claim(run_dir: RunDir) -> Claim:
    """Become the leader of a run by claiming the next term number.

    Raises UserError if the run directory can't be written, or if other processes are faster at every attempt.
    """
    try:
        run_dir.leaders.mkdir(mode=0o755, parents=True, exist_ok=True)
        for _ in range(_MOST_TRIES):
            term = _newest(run_dir.leaders) + 1
            with contextlib.suppress(FileExistsError):
                _create(_path(run_dir.leaders, term))
                return Claim(run_dir.leaders, term)
    except OSError as error:
        raise UserError(f"run directory '{run_dir.root}' can't be written: {error.strerror}") from error
    raise UserError(
        f"run directory '{run_dir.root}': gave up after {_MOST_TRIES:,} attempts to become its leader, because another "
        "process was faster each time"
    )


def _create(path: Path) -> None:
    who = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
    descriptor = open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    # A full disk does not matter: the name of the file is the claim, and its content is only for people.
    with contextlib.suppress(OSError):
        os.write(descriptor, json.dumps(who).encode())
    os.close(descriptor)


def _newest(folder: Path) -> int:
    terms = (int(match[1]) for match in map(_NAME.fullmatch, os.listdir(folder)) if match)
    return max(terms, default=0)


def _path(folder: Path, term: int) -> Path:
    return folder / f"term-{term:06d}.json"


@dataclass(frozen=True)
class LeaderStart:
    """The conditions under which a leader was started. By default a launcher on the same machine has started it.

    Attributes:
      alone: whether no launcher watches the other tasks. If so, the leader reports the end of training to these tasks,
        and gives the steps of a silent worker to other workers.
      term: the leader's term number, which it has claimed (`claim`); 0 if it has not claimed the run directory.
      least_workers: training begins as soon as this many workers are connected, and the other workers may connect later.
        None: training begins when all workers are connected.
      wait_s: how long an evaluator waits for a sign of life from training [s]; infinite if a launcher limits the wait.
      lost_after_s: if no step of a dispatch (steps that the leader sends to a worker together) was applied for this
        many seconds, plus the longest time that an update may take, the leader gives its open steps to another worker
        too.
      life: the unique id of the launcher's process, for progress rows; None without a launcher.
    """

    alone: bool = False
    term: int = 0
    least_workers: int | None = None
    lost_after_s: float = 60.0
    wait_s: float = math.inf
    life: str | None = None
