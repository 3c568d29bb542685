"""Decide when to save the state of a training: snapshots to recover from, checkpoints to score and keep."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ps_cluster.config import RunConfig
from ps_cluster.run import checkpoints
from ps_cluster.run.journal import JournalNotWritten
from ps_cluster.run.ledger import COUNTS
from ps_cluster.run.rows.checkpoint import Meta
from ps_cluster.run.run_dir import RunDir, say
from ps_cluster.training.bookkeeper import Bookkeeper
from ps_cluster.training.run_progress import RunProgress

SNAPSHOTS_KEPT = 2
ALL = 10**9
# Bounds of the checkpoint interval "auto". Scoring a checkpoint takes 5 s of a core for the largest network here, 4 %
# of two cores' time in a minute; a run of some seconds still gets several scores.
FIRST_S, LONGEST_S = 5.0, 60.0
# The chief hands out no steps while it saves. The pause after a save limits that to 5 % of the time; it has a maximum,
# because with a slow disk longer pauses would risk more lost work than they save.
PAUSE_FACTOR, LONGEST_PAUSE_S = 20, 60.0


class Saver:
    """Saves the state of a training into the run directory while it goes on.

    Attributes:
      last_seconds: duration of the last save, during which no steps were handed out; None before the first.
    """

    def __init__(
        self, config: RunConfig, run_dir: RunDir, dataset_kind: str, books: Bookkeeper, progress: RunProgress,
        *, notify: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self._config = config
        self._run_dir = run_dir
        self._dataset_kind = dataset_kind
        self._books = books
        self._progress = progress
        self._notify = notify
        self._clock = clock
        self._saved: dict[Path, float] = dict.fromkeys(run_dir.states, clock())
        self._epochs = self._whole_epochs()
        self._next = clock()
        self.last_seconds: float | None = None

    def save_when_due(self) -> None:
        """Save a checkpoint or a snapshot if one is due. A disk that refuses is reported, and training goes on."""
        if self._clock() < self._next:
            return
        for directory, is_due, keep in (
            (self._run_dir.checkpoints, self._checkpoint_is_due(), self._checkpoints_kept),
            (self._run_dir.snapshots, self._snapshot_is_due(), SNAPSHOTS_KEPT),
        ):
            if is_due:
                try:
                    self._save(directory, keep)
                except (checkpoints.CheckpointNotWritten, checkpoints.CheckpointError, JournalNotWritten) as error:
                    self._saved[directory] = self._clock()
                    self._notify(f"training goes on, but: {error}")
                return

    def _checkpoint_is_due(self) -> bool:
        settings = self._config.checkpoints
        if settings.every_epochs is not None:
            before, self._epochs = self._epochs, self._whole_epochs()
            return self._epochs > before
        return self._clock() - self._saved[self._run_dir.checkpoints] >= self._checkpoint_every_s

    def _snapshot_is_due(self) -> bool:
        every_s = self._config.checkpoints.snapshot_every_seconds
        return self._clock() - self._saved[self._run_dir.snapshots] >= every_s

    def _whole_epochs(self) -> int:
        """Return how many whole multiples of `every_epochs` were trained."""
        every = self._config.checkpoints.every_epochs
        return 0 if every is None else math.floor(self._progress.epochs / every)

    @property
    def _checkpoints_kept(self) -> int:
        """The number of checkpoints kept: all, where they are to be scored after training."""
        return ALL if self._config.evaluation.after_training else self._config.checkpoints.keep

    @property
    def _checkpoint_every_s(self) -> float:
        """Seconds between checkpoints. With "auto": the training time at the last one, within bounds."""
        if (setting := self._config.checkpoints.every_seconds) != "auto":
            return setting
        since_s = self._clock() - self._saved[self._run_dir.checkpoints]
        return min(LONGEST_S, max(FIRST_S, self._progress.clock.seconds - since_s))

    def save_last(self) -> None:
        """Save the last checkpoint and remove the snapshots, now useless. Raises RunFailed where the disk refuses."""
        self._save(self._run_dir.checkpoints, self._checkpoints_kept)
        shutil.rmtree(self._run_dir.snapshots, ignore_errors=True)

    def _save(self, directory: Path, keep: int) -> None:
        began = self._clock()
        arrays = self._books.snapshot()
        times = self._progress.clock.times
        meta = Meta(
            config=self._config.model_dump(mode="json"),
            dataset_kind=self._dataset_kind,
            train_seconds=times.seconds,
            examples=self._progress.examples,
            times=times,
            progress=self._progress.state,
        )
        step = int(arrays["counts"][:, COUNTS.index("version")].min())
        checkpoints.save(directory, checkpoints.Checkpoint(step, arrays, meta), keep)
        self._saved[directory] = self._clock()
        self.last_seconds = self._clock() - began
        self._next = self._clock() + min(LONGEST_PAUSE_S, PAUSE_FACTOR * self.last_seconds)
