"""Follow a run from the caller's process: call the caller's functions with each progress row and each score."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from operator import itemgetter
from typing import Protocol

from ps_cluster.files.json_rows import RowTail
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow, with_work
from ps_cluster.runs.run_dir import RunDir


class RunFollower(Protocol):
    """Follows a run from the caller's process."""

    def poll(self) -> bool:
        """Read what the run has written since the last call. Return whether to end the run early."""

    def finish(self) -> None:
        """Do the remaining work. This is called after the run has ended without an error."""


class CallbackAnswer(Enum):
    """The values that a function passed to `train` may return to control the run."""

    STOP = "stop"

    def __repr__(self) -> str:
        return f"ps_cluster.{self.name}"


STOP = CallbackAnswer.STOP
"""A callback returns STOP to end the training early. Steps under way are finished; the last checkpoint is scored."""

OnProgress = Callable[[ProgressRow], object]
OnEvaluation = Callable[[EvaluationRow], object]


class Listener:
    """Hands a run's progress rows and scores to the caller's functions, in the order in which they were written."""

    def __init__(self, run_dir: RunDir, *, on_progress: OnProgress | None, on_evaluation: OnEvaluation | None):
        self._work = run_dir.work
        self._progress = (RowTail(run_dir.progress, ProgressRow), on_progress)
        self._evaluation = (RowTail(run_dir.evaluation, EvaluationRow), on_evaluation)
        self._later: list[tuple[float, Callable[[], object]]] = []

    def skip(self) -> None:
        """Skip the rows that exist already, which are from an earlier session of the run."""
        for rows, _ in (self._progress, self._evaluation):
            rows.new_rows()

    def poll(self) -> bool:
        """Call the functions with the new rows until one of them returns STOP. Return whether STOP was returned."""
        return any(call() is STOP for call in self._calls())

    def finish(self) -> None:
        """Do nothing, because all rows have been handed over."""

    def _calls(self) -> list[Callable[[], object]]:
        # Rows that are written while the two files are read wait for the next call, because the file that was read
        # first may have got an earlier row meanwhile.
        until, found = time.time(), self._later
        rows, on_progress = self._progress
        if on_progress:
            # Rows before the first update have no values, and a run that is stopped then has trained nothing. Rows that
            # are written during a save repeat the previous row.
            found += [
                (row.time, partial(on_progress, row))
                for row in with_work(self._work, rows.new_rows())
                if row.applied and row.phase != "saving"
            ]
        scores, on_evaluation = self._evaluation
        if on_evaluation:
            found += [(score.time, partial(on_evaluation, score)) for score in scores.new_rows()]
        in_order = sorted(found, key=itemgetter(0))
        self._later = [one for one in in_order if one[0] >= until]
        return [call for written, call in in_order if written < until]
