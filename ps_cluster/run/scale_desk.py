"""Ask a launcher for another number of workers, and hear such requests: two files, each written whole."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable

from ps_cluster.errors import UserError
from ps_cluster.files import locks, ownership
from ps_cluster.files.json_files import read_json
from ps_cluster.files.writing import write_json
from ps_cluster.run.rows.scaling import ScaleAnswer, ScaleRequest
from ps_cluster.run.run_dir import RunDir

ANSWER_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1
_MOST_BYTES = 10_000


class ScaleDesk:
    """The launcher's side. A request that is there before it begins is nobody's any more."""

    def __init__(self, run_dir: RunDir, notify: Callable[[str], None]):
        self._run_dir = run_dir
        self._notify = notify
        self._asked = ""
        for left in (run_dir.scale, run_dir.scaled):
            left.unlink(missing_ok=True)

    def asked(self) -> int | None:
        """Return how many workers a new request asks for; None without one. It is taken away."""
        path = self._run_dir.scale
        try:
            ownership.refuse_foreign(path)
            request = read_json(path, ScaleRequest, _MOST_BYTES)
        except FileNotFoundError:
            return None
        except UserError as error:
            self._notify(f"a request to scale is left out: {error}")
            request = None
        path.unlink(missing_ok=True)
        if request is None:
            return None
        self._asked = request.asked
        return request.workers

    def answer(self, line: str, *, refused: bool) -> None:
        """Answer the newest request, and show the answer."""
        self._notify(f"scale: {line}")
        answer = ScaleAnswer(asked=self._asked, line=line, refused=refused)
        with contextlib.suppress(OSError):  # the disk may be full; the line is in the log
            write_json(self._run_dir.scaled, answer.model_dump())


def ask(
    run_dir: RunDir, workers: int,
    *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> str:  # fmt: skip
    """Ask the launcher of a run for so many workers; return what it did, on one line.

    Raises:
      UserError: it refuses, it has ended, or it does not answer.
    """
    asked = uuid.uuid4().hex
    write_json(run_dir.scale, ScaleRequest(asked=asked, workers=workers).model_dump())
    try:
        return _answer(run_dir, asked, clock, sleep)
    finally:
        with contextlib.suppress(FileNotFoundError, UserError):  # another command's request stays
            if read_json(run_dir.scale, ScaleRequest, _MOST_BYTES).asked == asked:
                run_dir.scale.unlink(missing_ok=True)


def _answer(run_dir: RunDir, asked: str, clock: Callable[[], float], sleep: Callable[[float], None]) -> str:
    until = clock() + ANSWER_WITHIN_S
    while clock() < until:
        try:
            answer = read_json(run_dir.scaled, ScaleAnswer, _MOST_BYTES)
        except FileNotFoundError:
            answer = None
        if answer is not None and answer.asked == asked:
            run_dir.scaled.unlink(missing_ok=True)
            if answer.refused:
                raise UserError(answer.line)
            return answer.line
        if not locks.is_held(run_dir.root):
            raise UserError(
                f"run directory '{run_dir.root}': no `run` works there: a run that has ended has no workers"
            )
        sleep(_LOOK_EVERY_S)
    raise UserError(f"the launcher gave no answer within {ANSWER_WITHIN_S:.0f} s (log: {run_dir.launcher_log})")
