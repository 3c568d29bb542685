"""Tell other processes of a run something by files: who leads, how training stands, how many workers there are to be.

Two leaders may live at once: a scheduler starts a new one while the old one's machine can't be reached. So each leader
claims the next number before it writes anything: there is a numbered file for each leader that ever was, and the newest
is the only one. A leader asks before each rename and removal whether a newer one is there (files/writing.py). A lock
can't do this: it is held by a process that is only frozen, and not every file system has one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files import locks, untrusted
from ps_cluster.files.json_files import parse_json, read_json
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import open_to_write, write_json
from ps_cluster.runs.result_rows import Ending
from ps_cluster.runs.rows import Count, Row, ScaleAnswer, ScaleRequest
from ps_cluster.runs.run_dir import RunDir

_NAME = re.compile(r"term-(\d{6,9})\.json")
_MOST_TRIES = 1000


class Superseded(RunFailed):
    """A newer leader has taken over the run."""


@dataclass(frozen=True)
class Claim:
    """One leader's claim of a run directory. `term` counts the leaders from 1, as terms do in Raft."""

    folder: Path
    term: int

    def check(self) -> None:
        """Raise Superseded where a newer leader has made its claim."""
        # Claims have no gaps, so the next one tells. One look at one file is cheap also in a shared folder.
        if _path(self.folder, self.term + 1).exists():
            raise Superseded(
                f"a newer leader (term {_newest(self.folder)}) has taken over '{self.folder.parent}'; this one is of term "
                f"{self.term} and stops without writing anything"
            )


def claim(run_dir: RunDir) -> Claim:
    """Claim the next term of a run directory. Raises UserError where the folder can't be written."""
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
        f"run directory '{run_dir.root}' is claimed by other leaders all the time: stop them, and try again"
    )


def _create(path: Path) -> None:
    who = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
    descriptor = open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with contextlib.suppress(OSError):  # a full disk: the name is the claim, the content is for people
        os.write(descriptor, json.dumps(who).encode())
    os.close(descriptor)


def _newest(folder: Path) -> int:
    terms = (int(match[1]) for match in map(_NAME.fullmatch, os.listdir(folder)) if match)
    return max(terms, default=0)


def _path(folder: Path, term: int) -> Path:
    return folder / f"term-{term:06d}.json"


# Describe the start of a leader: alone, with tasks that others start, or by a launcher that watches all of them.


@dataclass(frozen=True)
class LeaderStart:
    """The way a leader was started. The default: by a launcher on the same machine.

    Attributes:
      alone: no launcher watches the other tasks. The leader tells them how training ends, and gives the steps of a
        silent worker to others.
      term: the number of its claim (runs/messages.py); 0 without one.
      least_workers: training begins with as many workers; the others may come later. None: all.
      wait_s: how long an evaluator waits for a sign of life; a launcher limits the wait itself.
      silent_after_s: a dispatch without an update for so long is given to another worker too.
    """

    alone: bool = False
    term: int = 0
    least_workers: int | None = None
    silent_after_s: float = 60.0
    wait_s: float = math.inf


# The file in a task's workspace in which the leader tells it how the training stands. No TensorFlow.
#
# The leader writes it through TensorFlow, on the task's device; so the task needs no port and no folder beside those it
# has. It is written in place, so a reader may see a part of it, and looks again.

TOLD = "told.json"
_MOST_BYTES = 10_000


class LeaderMessage(Row):
    """A leader's word to a task.

    Attributes:
      term: of the leader (runs/messages.py).
      ended: how training has ended; None while it goes on.
      refused: why the leader does not take this task, on one line; None where it does.
      start_again: why this task has to end and be started again, on one line; None where it has not.
    """

    term: Count
    ended: Ending | None = None
    refused: str | None = Field(default=None, max_length=2000)
    start_again: str | None = Field(default=None, max_length=2000)


def read_told(folder: Path) -> LeaderMessage | None:
    """Return what the leader said last; None where it said nothing yet, or is just writing."""
    try:
        with (folder / TOLD).open("rb") as file:
            return LeaderMessage.model_validate(parse_json(file.read(_MOST_BYTES).decode()))
    except (OSError, UnicodeDecodeError, Malformed, ValidationError):
        return None


def forget_told(folder: Path) -> None:
    """Remove what was said to an earlier process of this task."""
    (folder / TOLD).unlink(missing_ok=True)


# Ask a launcher for another number of workers, and hear such requests: a file for each, and one for its answer.

ANSWER_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1


class ScaleDesk:
    """The launcher's side. A request that is there before it begins is nobody's any more."""

    def __init__(self, run_dir: RunDir, notify: Callable[[str], None]):
        self._run_dir = run_dir
        self._notify = notify
        self._asked = ""
        for asked in (*run_dir.scale_requests(), *run_dir.scale_answers()):
            _clear(run_dir, asked)

    def asked(self) -> int | None:
        """Return how many workers the oldest request asks for, and take it away; None without one."""
        for asked in self._run_dir.scale_requests():
            if (request := self._take(asked)) is not None:
                self._asked = asked
                return request.workers
        return None

    def answer(self, line: str, *, refused: bool) -> None:
        """Answer the request that `asked` has returned last, and show the answer."""
        self._notify(f"scale: {line}")
        with contextlib.suppress(OSError):  # the disk may be full; the line is in the log
            answer = ScaleAnswer(line=line, refused=refused)
            write_json(self._run_dir.scale_answer(self._asked), answer.model_dump())

    def _take(self, asked: str) -> ScaleRequest | None:
        path = self._run_dir.scale_request(asked)
        try:
            untrusted.refuse_foreign(path)
            return read_json(path, ScaleRequest, _MOST_BYTES)
        except FileNotFoundError:  # the command has ended
            return None
        except UserError as error:
            self._notify(f"a request to scale is left out: {error}")
            return None
        finally:
            path.unlink(missing_ok=True)


def ask(
    run_dir: RunDir, workers: int,
    *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> str:  # fmt: skip
    """Ask the launcher of a run for so many workers; return what it did, on one line.

    Raises:
      UserError: it refuses, it has ended, or it does not answer.
    """
    asked = f"{time.time_ns():020}-{secrets.token_hex(4)}"  # in the order of names the newest is the last
    write_json(run_dir.scale_request(asked), ScaleRequest(workers=workers).model_dump())
    try:
        return _answer(run_dir, asked, clock, sleep)
    finally:
        _clear(run_dir, asked)


def _answer(run_dir: RunDir, asked: str, clock: Callable[[], float], sleep: Callable[[float], None]) -> str:
    until = clock() + ANSWER_WITHIN_S
    while clock() < until:
        with contextlib.suppress(FileNotFoundError):
            answer = read_json(run_dir.scale_answer(asked), ScaleAnswer, _MOST_BYTES)
            if answer.refused:
                raise UserError(answer.line)
            return answer.line
        if not locks.is_held(run_dir.root):
            raise UserError(
                f"run directory '{run_dir.root}': no `run` works there: a run that has ended has no workers"
            )
        sleep(_LOOK_EVERY_S)
    raise UserError(f"the launcher gave no answer within {ANSWER_WITHIN_S:.0f} s (log: {run_dir.launcher_log})")


def _clear(run_dir: RunDir, asked: str) -> None:
    for path in (run_dir.scale_request(asked), run_dir.scale_answer(asked)):
        path.unlink(missing_ok=True)
