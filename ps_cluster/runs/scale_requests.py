"""Request another number of workers from a launcher, and answer such requests. Each request and answer is a file."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.files import locks, untrusted
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_json
from ps_cluster.notices import Notify
from ps_cluster.runs.logs import with_log
from ps_cluster.runs.rows import ClusterFile, Index, Row, Text
from ps_cluster.runs.run_dir import RunDir

ANSWER_WITHIN_S = 60.0
_ANSWER_POLL_S = 0.1
_MOST_BYTES = 10_000


class ScaleRequest(Row):
    """A request to change the number of workers of a run to `workers`."""

    workers: Index


class ScaleAnswer(Row):
    """The launcher's answer. `line`: what the launcher did, or why it refused, on one line."""

    line: Text
    refused: bool


class ScaleRequestHandler:
    """The launcher's handler of requests to change the number of workers.

    Creating it removes old requests, for which no command waits any more.

    The system may refuse to remove a file. So this object remembers the names of old and handled requests, and ignores
    their files.
    """

    def __init__(self, run_dir: RunDir, notify: Notify):
        self._run_dir = run_dir
        self._notify = notify
        self._asked = ""
        self._done = set(run_dir.scale_requests())
        for asked in (*self._done, *run_dir.scale_answers()):
            _clear(run_dir, asked)

    def asked(self) -> int | None:
        """Remove the oldest request, and return the number of workers that it asks for; None without a request."""
        for asked in self._run_dir.scale_requests():
            if asked not in self._done and (request := self._take(asked)) is not None:
                self._asked = asked
                return request.workers
        return None

    def answer(self, line: str, *, refused: bool) -> None:
        """Answer the request that `asked` returned last, and show the answer."""
        self._notify(f"scale: {line}")
        with contextlib.suppress(OSError):  # the disk may be full; the line is in the log
            answer = ScaleAnswer(line=line, refused=refused)
            write_json(self._run_dir.scale_answer(self._asked), answer.model_dump())

    def _take(self, asked: str) -> ScaleRequest | None:
        path = self._run_dir.scale_request(asked)
        self._done.add(asked)
        try:
            untrusted.refuse_foreign(path)
            return read_json(path, ScaleRequest, _MOST_BYTES)
        except FileNotFoundError:  # the command has ended
            return None
        except UserError as error:
            self._notify(f"a request to scale is ignored: {error}")
            return None
        finally:
            _remove(path)


def ask(
    run_dir: RunDir, workers: int,
    *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> str:  # fmt: skip
    """Request this number of workers from the launcher of a run. Return what the launcher did, on one line.

    Raises UserError if the launcher refuses, has ended, or does not answer, or if the run has no launcher.
    """
    if run_dir.cluster.exists() and read_json(run_dir.cluster, ClusterFile).launcher is None:
        raise UserError(
            f"run directory '{run_dir.root}': each of its tasks was started separately: start or stop workers in the same way"
        )
    asked = f"{time.time_ns():020}-{secrets.token_hex(4)}"  # if requests are sorted by name, the newest is last
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
                f"run directory '{run_dir.root}': its run is not active, so it has no workers to start or stop"
            )
        sleep(_ANSWER_POLL_S)
    reason = f"the launcher gave no answer within {ANSWER_WITHIN_S:.0f} s"
    raise UserError(with_log(reason, run_dir.launcher_log))


def _clear(run_dir: RunDir, asked: str) -> None:
    _remove(run_dir.scale_request(asked))
    _remove(run_dir.scale_answer(asked))


def _remove(path: Path) -> None:
    """Remove a file, unless the system refuses, for example because it is a folder."""
    with contextlib.suppress(OSError):
        path.unlink()
