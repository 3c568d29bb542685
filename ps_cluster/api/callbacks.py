"""Call functions of the caller for what a run has written since the last look."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from operator import itemgetter

from ps_cluster.files.json_rows import RowTail
from ps_cluster.run.rows.progress import SAVING, ProgressRow, with_work
from ps_cluster.run.rows.scores import EvaluationRow
from ps_cluster.run.run_dir import RunDir


class Wish(Enum):
    """The answers that a callback may return."""

    STOP = "stop"

    def __repr__(self) -> str:
        return f"ps_cluster.{self.name}"


STOP = Wish.STOP
"""Returned by a callback: end the training early. The steps under way are finished, the last checkpoint is scored."""

OnProgress = Callable[[ProgressRow], object]
OnEvaluation = Callable[[EvaluationRow], object]


class Listener:
    """Hands the rows of a run to the caller's functions, in the order in which they were written."""

    def __init__(self, run_dir: RunDir, on_progress: OnProgress | None, on_evaluation: OnEvaluation | None):
        self._work = run_dir.work
        self._progress = (RowTail(run_dir.progress, ProgressRow), on_progress)
        self._evaluation = (RowTail(run_dir.evaluation, EvaluationRow), on_evaluation)

    def look(self) -> bool:
        """Call the functions for the new rows, until one wants to stop. Return whether one does."""
        return any(call() is STOP for call in self._calls())

    def _calls(self) -> list[Callable[[], object]]:
        found: list[tuple[float, Callable[[], object]]] = []
        rows, on_progress = self._progress
        if on_progress:
            # Before the first update nothing can be told, and a run that is stopped then has trained nothing. Rows of a save
            # repeat the one before.
            found += [
                (row.time, partial(on_progress, row))
                for row in with_work(self._work, rows.new_rows())
                if row.applied and row.phase != SAVING
            ]
        scores, on_evaluation = self._evaluation
        if on_evaluation:
            found += [(score.time, partial(on_evaluation, score)) for score in scores.new_rows()]
        return [call for _, call in sorted(found, key=itemgetter(0))]
