"""Ask a launcher for another number of workers, and hear such requests: a file for each, and one for its answer."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable

from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files import locks, ownership
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_json
from ps_cluster.runs.rows import ScaleAnswer, ScaleRequest
from ps_cluster.runs.run_dir import RunDir

ANSWER_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1
_MOST_BYTES = 10_000


class ScaleDesk:
    """The launcher's side. A request that is there before it begins is nobody's any more."""

    def __init__(self, run_dir: RunDir, notify: Callable[[str], None]):
        self._run_dir = run_dir
        self._notify = notify
        self._asked = ""
        for asked in (*run_dir.scale_requests(), *run_dir.scale_answers()):
            _clear(run_dir, asked)

    def asked(self) -> int | None:
        """Return how many workers the newest request asks for; None without one. All requests are taken away."""
        taken = [(asked, request) for asked in self._run_dir.scale_requests() if (request := self._take(asked))]
        if not taken:
            return None
        *earlier, (self._asked, newest) = taken
        for asked, request in earlier:
            self._notify(f"scale: a newer request, for {newest.workers}, replaces the one for {request.workers}")
            line = f"a newer request, for --workers {newest.workers}, replaced this one before the launcher had seen it"
            self._write(asked, ScaleAnswer(line=line, outcome="replaced"))
        return newest.workers

    def answer(self, line: str, *, refused: bool) -> None:
        """Answer the newest request, and show the answer."""
        self._notify(f"scale: {line}")
        self._write(self._asked, ScaleAnswer(line=line, outcome="refused" if refused else "done"))

    def _take(self, asked: str) -> ScaleRequest | None:
        path = self._run_dir.scale_request(asked)
        try:
            ownership.refuse_foreign(path)
            return read_json(path, ScaleRequest, _MOST_BYTES)
        except FileNotFoundError:  # the command has ended
            return None
        except UserError as error:
            self._notify(f"a request to scale is left out: {error}")
            return None
        finally:
            path.unlink(missing_ok=True)

    def _write(self, asked: str, answer: ScaleAnswer) -> None:
        with contextlib.suppress(OSError):  # the disk may be full; the line is in the log
            write_json(self._run_dir.scale_answer(asked), answer.model_dump())


def ask(
    run_dir: RunDir, workers: int,
    *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> str:  # fmt: skip
    """Ask the launcher of a run for so many workers; return what it did, on one line.

    Raises:
      UserError: it refuses, it has ended, or it does not answer.
      RunFailed: a newer request replaced this one.
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
            if answer.outcome == "refused":
                raise UserError(answer.line)
            if answer.outcome == "replaced":
                raise RunFailed(answer.line)
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
