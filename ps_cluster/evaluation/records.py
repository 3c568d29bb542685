"""What an evaluator leaves in the run directory: a row for each score, and the best model so far."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ps_cluster.files import ownership
from ps_cluster.files.locks import InUse, Lock
from ps_cluster.files.writing import write_json
from ps_cluster.run_dir import RunDir, append_row, read_rows
from ps_cluster.training import checkpoints
from ps_cluster.training.checkpoints import Checkpoint

Row = dict[str, Any]


def merit(row: Row) -> float:
    """Return the accuracy that a best model is chosen by: on images held out from training, else on the test images."""
    held_out = row.get("validation_accuracy")
    return row["test_accuracy"] if held_out is None else held_out


class Records:
    """The scores of a run. Of several evaluators only one records: the one that holds the lock, for as long as it lives."""

    def __init__(self, run_dir: RunDir, notify: Callable[[str], None]):
        self._run_dir = run_dir
        self._notify = notify
        self._lock: Lock | None = None
        self._refused = False

    def rows(self) -> list[Row]:
        return list(read_rows(self._run_dir.evaluation))

    def steps(self) -> set[int]:
        return {row["step"] for row in self.rows()}

    def acquire(self) -> bool:
        """Whether this process may record; says once why not. Asked again later it may be its turn."""
        if self._lock is None:
            try:
                if ownership.is_foreign(self._run_dir.root):
                    raise PermissionError(errno.EPERM, "it belongs to another user")
                self._run_dir.metrics.mkdir(parents=True, exist_ok=True)
                file = self._run_dir.evaluation.with_suffix(".lock")
                self._lock = Lock(file, f"'{self._run_dir.evaluation}'", self._notify)
            except InUse:
                self._refuse("another evaluator records the scores of this run")
            except OSError as error:
                self._refuse(f"'{self._run_dir.metrics}' can't be written ({error.strerror})")
        return self._lock is not None

    def _refuse(self, why: str) -> None:
        if not self._refused:
            self._notify(f"{why}: this one only prints them")
        self._refused = True

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def is_best(self, row: Row) -> bool:
        """Whether a score beats that of the model in best/; an equal one that came earlier stays."""
        best = self._best()
        return best is None or merit(row) > merit(best)

    def _best(self) -> Row | None:
        try:
            best = json.loads(self._best_file.read_text(encoding="utf-8"))
            return best if self._run_dir.best_model.is_file() and "test_accuracy" in best else None
        except (OSError, ValueError):
            return None

    @property
    def _best_file(self) -> Path:
        return self._run_dir.best / "best.json"

    def keep_best(self, checkpoint: Checkpoint, row: Row, save_model: Callable[[Path], None]) -> None:
        """Puts a model and its checkpoint into best/. `best.json` comes last: until then the old score stands."""
        folder = self._run_dir.best
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in (*folder.glob(".model.*.keras"), *folder.glob(".*.tmp")):
            left_over.unlink()  # of an evaluator that was killed: the lock is ours
        beside = folder / f".model.{secrets.token_hex(8)}.keras"
        save_model(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(self._run_dir.best_model)
        checkpoints.write(folder / "checkpoint.npz", checkpoint)
        write_json(
            self._best_file, {name: row[name] for name in ("step", "test_accuracy", "test_loss", "validation_accuracy")}
        )

    def add(self, row: Row) -> None:
        append_row(self._run_dir.evaluation, row)
