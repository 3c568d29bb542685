"""When the state of a training is written down: snapshots to recover from, checkpoints to score and keep."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ps_cluster.config import RunConfig
from ps_cluster.run_dir import RunDir, say
from ps_cluster.training import checkpoints, training_clock
from ps_cluster.training.bookkeeper import Bookkeeper
from ps_cluster.training.journal import JournalNotWritten
from ps_cluster.training.ledger import COUNTS
from ps_cluster.training.run_progress import RunProgress

SNAPSHOTS_KEPT = 2
# Of checkpoints where the interval is "auto". Scoring one takes 5 s of a core for the largest network here, 4 % of what two
# cores have in a minute; a run of seconds has several scores all the same.
FIRST_S, LONGEST_S = 5.0, 60.0
# The chief hands out no steps while it saves: no more than 5 % of the time, unless the disk is so slow that a long pause
# would risk more work than it saves.
PAUSE_FACTOR, LONGEST_PAUSE_S = 20, 60.0


class Saver:
    """Writes the state of a training into the run directory while it goes on.

    Attributes:
      last_seconds: how long the last save took, in which no steps were handed out; None before the first.
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
        self._next = clock()
        self.last_seconds: float | None = None

    def save_when_due(self) -> None:
        """A checkpoint or a snapshot if it is time. A disk that refuses is reported, and training goes on."""
        if self._clock() < self._next:
            return
        settings = self._config.checkpoints
        plans = (
            (self._run_dir.checkpoints, self._checkpoint_every_s, settings.keep),
            (self._run_dir.snapshots, settings.snapshot_every_seconds, SNAPSHOTS_KEPT),
        )
        for directory, every_s, keep in plans:
            if self._clock() - self._saved[directory] >= every_s:
                try:
                    self._save(directory, keep)
                except (checkpoints.CheckpointNotWritten, checkpoints.CheckpointError, JournalNotWritten) as error:
                    self._saved[directory] = self._clock()
                    self._notify(f"training goes on, but: {error}")
                return

    @property
    def _checkpoint_every_s(self) -> float:
        """From one checkpoint to the next: with "auto" as long as was trained before it, within bounds."""
        if (setting := self._config.checkpoints.every_seconds) != "auto":
            return setting
        since_s = self._clock() - self._saved[self._run_dir.checkpoints]
        return min(LONGEST_S, max(FIRST_S, self._progress.clock.seconds - since_s))

    def save_last(self) -> None:
        """The last checkpoint; snapshots are of no use behind it. Raises RunFailed where the disk refuses."""
        self._save(self._run_dir.checkpoints, self._config.checkpoints.keep)
        shutil.rmtree(self._run_dir.snapshots, ignore_errors=True)

    def _save(self, directory: Path, keep: int) -> None:
        began = self._clock()
        arrays = self._books.snapshot()
        times = self._progress.clock.times
        meta = {
            "config": self._config.model_dump(mode="json"),
            "dataset_kind": self._dataset_kind,
            "train_seconds": times.seconds,
            "examples": self._progress.examples,
            "times": training_clock.to_json(times),
            "progress": self._progress.state,
        }
        step = int(arrays["counts"][:, COUNTS.index("version")].min())
        checkpoints.save(directory, checkpoints.Checkpoint(step, arrays, meta), keep)
        self._saved[directory] = self._clock()
        self.last_seconds = self._clock() - began
        self._next = self._clock() + min(LONGEST_PAUSE_S, PAUSE_FACTOR * self.last_seconds)
