"""Write an evaluator's results into the run directory: a row for each scored checkpoint, and the best model so far."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import append_row, read_rows
from ps_cluster.files.locks import InUse, Lock
from ps_cluster.files.writing import path_beside, write_json
from ps_cluster.notices import Notify
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.runs.monitor import Monitor
from ps_cluster.runs.predictions import Predictions, write_predictions
from ps_cluster.runs.result_rows import BROKEN, CheckpointScores, EvaluationRow, ScoreRow, Summary
from ps_cluster.runs.run_dir import RunDir


class Records:
    """The recorded scores of a run. Only the evaluator that holds the lock records scores."""

    def __init__(self, run_dir: RunDir, notify: Notify):
        self._run_dir = run_dir
        self._notify = notify
        self._lock: Lock | None = None
        self._refused = False

    def rows(self) -> list[EvaluationRow]:
        return list(read_rows(self._run_dir.evaluation, EvaluationRow))

    def steps(self) -> set[int]:
        return {row.step for row in self.rows()}

    def acquire(self) -> bool:
        """Lock the scores. Return whether that succeeded. Only the first failure is reported. Call again to retry."""
        if self._lock is None:
            try:
                if untrusted.is_foreign(self._run_dir.root):
                    raise PermissionError(errno.EPERM, "it belongs to another user")
                for folder in self._run_dir.evaluator_folders:
                    untrusted.refuse_foreign_symlinks(folder, "folder of the run")
                self._run_dir.metrics.mkdir(parents=True, exist_ok=True)
                file = self._run_dir.evaluation.with_suffix(".lock")
                self._lock = Lock(file, f"'{self._run_dir.evaluation}'", self._notify)
            except InUse:
                self._refuse("another evaluator records the scores of this run")
            except untrusted.Foreign as error:
                self._refuse(str(error))
            except OSError as error:
                self._refuse(f"'{self._run_dir.metrics}' can't be written ({error.strerror})")
        return self._lock is not None

    def _refuse(self, why: str) -> None:
        if not self._refused:
            self._notify(f"{why}: this evaluator only prints the scores")
        self._refused = True

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def is_best(self, row: ScoreRow, monitor: Monitor) -> bool:
        """Return whether a score is better than that of the best model so far. An equal score is not better."""
        best = self._best()
        return monitor.merit(row) > (-math.inf if best is None else monitor.merit(best))

    def _best(self) -> CheckpointScores | None:
        if not self._run_dir.best_model.is_file():
            return None
        try:
            return read_json(self._best_file, CheckpointScores)
        except FileNotFoundError:
            return None
        except UserError as error:
            self._notify(f"the best model so far is unknown, so this model takes its place: {error}")
            return None

    @property
    def _best_file(self) -> Path:
        return self._run_dir.best / "best.json"

    def keep_best(self, checkpoint: Checkpoint, row: EvaluationRow, save_model: Callable[[Path], None]) -> None:
        """Put a model, its checkpoint and its score into best/, in place of the previous best model.

        The score is written last. Until then, the score in best/ is that of the previous best model.
        """
        folder = self._run_dir.best
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in (*folder.glob(".model.*.keras"), *folder.glob(".*.tmp")):
            left_over.unlink()  # it is from a killed evaluator, because this evaluator holds the lock
        with path_beside(self._run_dir.best_model) as unfinished:
            save_model(unfinished)
        checkpoints.write(folder / "checkpoint.safetensors", checkpoint)
        write_json(self._best_file, row.model_dump(include=set(CheckpointScores.model_fields)))

    def add(self, row: EvaluationRow) -> None:
        append_row(self._run_dir.evaluation, row)

    def keep_predictions(self, predictions: Predictions) -> None:
        """Replace the predictions of an earlier step. A failure is only reported, because only plots need this file."""
        try:
            write_predictions(self._run_dir.predictions, predictions)
        except OSError as error:
            self._notify(f"the predictions of step {predictions.step:,} are not kept: {error.strerror or error}")


def outcome_of(root: Path) -> str | None:
    """Return how a run ended: "completed", "diverged" or "nan_loss".

    Return None if it did not end in one of these ways, or if its last checkpoint is not scored yet. A run that was
    stopped early, by its patience or its time limit, counts as completed. Raises UserError for damaged files.
    """
    run_dir = RunDir(root)
    try:
        summary, ended = read_json(run_dir.summary, Summary), checkpoints.ended(run_dir.checkpoints)
    except FileNotFoundError:
        return None
    is_over = ended is not None and summary.evaluation.step == ended.last_step
    outcome = "completed" if summary.early_stop else summary.outcome
    return outcome if is_over and outcome in ("completed", *BROKEN) else None
