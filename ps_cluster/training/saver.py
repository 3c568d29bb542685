"""Decide when to save the state of a training: as snapshots, to recover from, and as checkpoints, to score and keep."""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.setting_types import AUTO
from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import last_row, read_rows
from ps_cluster.files.tensor_files import Pieces
from ps_cluster.notices import Line, Notify
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoint_arrays import COUNTERS, WEIGHTS
from ps_cluster.runs.checkpoints import CheckpointMeta, FullState
from ps_cluster.runs.dataset_rows import Kind
from ps_cluster.runs.journal import CountedWork, JournalNotWritten, counted_work
from ps_cluster.runs.ledger import counts_of
from ps_cluster.runs.logs import DISK_REFUSES
from ps_cluster.runs.resharding import is_aligned, newest_aligned
from ps_cluster.runs.result_rows import CallbacksRow, EvaluationRow
from ps_cluster.runs.run_dir import RunDir, log_line
from ps_cluster.server.vector_on_server import Extent
from ps_cluster.training.aligned_states import AlignedStates
from ps_cluster.training.ledger_reader import LedgerReader
from ps_cluster.training.run_progress import ROUNDING, RunProgress

SNAPSHOTS_KEPT = 2
# With embedding tables, a snapshot holds only the rows that have changed since the last full snapshot, if these are at most
# this share of all weights. The next snapshot is full if all partial snapshots since the last full one would together be larger
# than that one. So all snapshots on the disk (those that are kept, those on which they build, and the one that is being
# written) are together at most three times as large as a full snapshot.
MOST_CHANGED = 0.5
ALL = 10**9
# Bounds of the checkpoint interval "auto". Scoring a checkpoint of the largest network here takes 5 s of a core, which is 4 %
# of two cores' time in a minute. A run of some seconds still gets several scores.
FIRST_S, LONGEST_S = 5.0, 60.0
# The chief does not check the ledger while it saves. The pause after a save limits this to 5 % of the time. The pause
# has a maximum, because with a slow disk a longer pause would risk more work than it saves.
PAUSE_FACTOR, LONGEST_PAUSE_S = 20, 60.0
# The user has asked for each checkpoint of whole epochs, and comparisons need these checkpoints at the same number of examples
# in all modes. So the pause after such a save is only as long as the save itself: saves take at most half of the chief's time.
EPOCH_PAUSE_FACTOR = 1
# Checkpoints that wait for the evaluator or for Keras callbacks are kept, up to this total size.
MOST_WAITING_BYTES = 2_000_000_000
# A save that takes long is reported at this interval, for at most ten minutes, so that it does not count as a standstill.
SAVE_TOLD_EVERY_S, SAVE_TOLD_AT_MOST = 10.0, 60
LONGEST_SAVE_S = SAVE_TOLD_AT_MOST * SAVE_TOLD_EVERY_S
AGAIN_AFTER_S = 5.0  # the pause before a checkpoint of whole epochs is tried again after the disk has refused it


def workers_at_start(config: RunConfig, before: Sequence[CountedWork]) -> int:
    """Return the number of workers with which the training began. `before`: the work of earlier leaders."""
    return before[0].workers if before else config.chosen_mode.emulated_workers(config)


class Saver:
    """Saves the state of a training into the run directory while the training continues.

    The methods that save take a `problem`, which the saved state contains (`CountedWork.problem`).

    Attributes:
      last_seconds: the duration of the last save, during which the chief did not check the ledger; None before the
        first save.
      diverged: whether a weight of the last saved state is NaN or infinite. No update makes such a weight finite again.
    """

    def __init__(
        self, config: RunConfig, run_dir: RunDir, dataset_kind: Kind, ledger_reader: LedgerReader,
        progress: RunProgress, *, data: dict[str, str] | None = None, network: list[str] | None = None, term: int = 0,
        before: Sequence[CountedWork] = (),
        rules: str = "", lines_of: Callable[[Mapping[str, np.ndarray]], Iterable[Line]] = lambda arrays: (),
        saving: Callable[[], None] = lambda: None, notify: Notify = log_line,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        """Create a saver.

        Args:
          data: the name, sizes and checksum of the data set (`facts_of_data`).
          network: the path and shape of each variable. Neither `data` nor `network` may change when training continues.
          term: this leader's term number.
          before: the parts of the training that earlier leaders did, in order.
          rules: the digest of the settings that determine the values in this leader's ledger rows
            (`learning_rate.ledger_settings_digest`).
          lines_of: returns lines for the user about the arrays of a checkpoint.
          saving: called at intervals while a save takes long.
        """
        self._config = config
        self._run_dir = run_dir
        self._dataset_kind = dataset_kind
        self._ledger_reader = ledger_reader
        self._progress = progress
        self._data, self._network = data, network
        self._term, self._before, self._rules = term, before, rules
        self._lines_of, self._saving = lines_of, saving
        self._notify = notify
        self._clock = clock
        self._saved: dict[Path, float] = dict.fromkeys(run_dir.states, clock())
        self._epochs = self._whole_epochs()
        self._hold()
        self._refused_at = -math.inf
        self._ended = -math.inf  # the time at which the last save ended
        self._aligned: dict[Path, int | None] = {}
        self._aligned_states: AlignedStates | None = None
        if config.shards > 1:
            self._aligned[run_dir.snapshots] = newest_aligned(run_dir.snapshots)
            if not config.evaluation.after_training:  # otherwise all checkpoints are kept, and there may be many
                self._aligned[run_dir.checkpoints] = newest_aligned(run_dir.checkpoints)
            snapshot_every_s = config.checkpoints.snapshot_every_seconds
            has_aligned = any(self._aligned.values())  # an aligned state of step 0 saves no work, so it does not count
            self._aligned_states = AlignedStates(
                has_aligned=has_aligned, snapshot_every_s=snapshot_every_s, clock=clock
            )
        self._reported_at = -1  # the number of updates applied at the last save that took long
        self._full: FullState | None = None  # the full snapshot since which the servers note the rows that change
        self._built_on_full = 0.0  # the size of all snapshots that build on the full one, as a share of its size
        self.last_seconds: float | None = None
        self.diverged = False

    @property
    def seconds_to_checkpoint(self) -> float:
        """The seconds until the setting `checkpoints.every_epochs` makes a checkpoint due, at the present speed.

        They are infinite without this setting, while the speed is unknown, and while a checkpoint is already due.
        The chief checks the ledger after this time, so that all modes of a comparison save at nearly the same number
        of examples.
        """
        every, speed = self._config.checkpoints.every_epochs, self._progress.epochs_per_second()
        is_due = self._whole_epochs() > self._epochs  # the checkpoint waits only for the pause after the last save
        if every is None or is_due or not speed:
            return math.inf
        return ((self._epochs + 1) * every - self._progress.epochs) / speed

    @property
    def is_paused(self) -> bool:
        """Whether the chief pauses, which means that it hands out no steps.

        During this pause, all shards reach a state in which they have applied the same steps. Then a snapshot is saved.
        """
        return self._aligned_states is not None and self._aligned_states.is_paused

    def may_be_due_at(self, applied: int) -> bool:
        """Return whether a save may be due once this number of updates is applied.

        The time of these updates is estimated from the pace of the workers.
        """
        progress = self._progress
        at_s = self._clock() + (applied - progress.applied) * (progress.pace.step_s or 0.0)
        is_epoch = applied >= progress.next_checkpoint_at
        return is_epoch or self._checkpoint_is_due(at_s) or self._snapshot_is_due(at_s)

    def save_when_due(self, problem: str) -> None:
        """Save a checkpoint or a snapshot if one is due. If the disk refuses it, this is reported, and training continues."""
        aligned_states, progress = self._aligned_states, self._progress
        if aligned_states is not None and aligned_states.poll(
            progress.applied, progress.outstanding, progress.pace.longest_update_s
        ):
            self._try_to_save(self._run_dir.snapshots, problem)
            aligned_states.give_up()  # if the disk refused the snapshot
        if self._checkpoint_is_due(self._clock()):
            self._try_to_save(self._run_dir.checkpoints, problem)
        elif progress.applied > 0 and self._snapshot_is_due(self._clock()):
            self._try_to_save(self._run_dir.snapshots, problem)

    def _try_to_save(self, directory: Path, problem: str) -> None:
        try:
            self._save(directory, problem)
        except (checkpoints.CheckpointNotWritten, checkpoints.CheckpointError, JournalNotWritten) as error:
            self._saved[directory] = self._refused_at = self._clock()
            self._progress.held_at = None  # training is held again only after the next checkpoint is written
            self._notify(DISK_REFUSES(f"training continues, but: {error}"))

    def _hold(self) -> None:
        """Keep the chief from handing out steps beyond the next checkpoint, if checkpoints have to be exact."""
        if self._config.checkpoints.exact and self._config.checkpoints.every_epochs is not None:
            self._progress.held_at = self._progress.next_checkpoint_at

    def _checkpoint_is_due(self, now_s: float) -> bool:
        settings = self._config.checkpoints
        if settings.every_epochs is not None:
            if self._progress.held_at is not None:  # training waits for the checkpoint
                return self._progress.held_at <= self._progress.applied < self._progress.total
            refused = now_s - self._refused_at < AGAIN_AFTER_S
            return self._whole_epochs() > self._epochs and not refused and self._has_paused(EPOCH_PAUSE_FACTOR, now_s)
        return (
            self._has_paused(PAUSE_FACTOR, now_s)
            and now_s - self._saved[self._run_dir.checkpoints] >= self._checkpoint_every_s
        )

    def _snapshot_is_due(self, now_s: float) -> bool:
        """Return whether it is time for a snapshot. None is saved before the first update."""
        every_s = self._config.checkpoints.snapshot_every_seconds
        return now_s - self._saved[self._run_dir.snapshots] >= every_s and self._has_paused(PAUSE_FACTOR, now_s)

    def _has_paused(self, factor: float, now_s: float) -> bool:
        """Return whether enough time has passed since the end of the last save.

        Enough is `factor` times the duration of the last save, but at most LONGEST_PAUSE_S.
        """
        return now_s - self._ended >= min(LONGEST_PAUSE_S, factor * (self.last_seconds or 0.0))

    def _whole_epochs(self) -> int:
        """Return how many times `checkpoints.every_epochs` epochs have been trained; 0 without this setting."""
        every = self._config.checkpoints.every_epochs
        return 0 if every is None else math.floor(self._progress.epochs / every + ROUNDING)

    def _checkpoints_kept(self) -> int:
        """Return the number of checkpoints to keep.

        All checkpoints are kept if they are to be scored after training. Otherwise `checkpoints.keep` of them are kept.
        If more of them still wait for the evaluator or for Keras callbacks, more are kept, up to `MOST_WAITING_BYTES`.
        """
        if self._config.evaluation.after_training:
            return ALL
        waiting = self._waiting_checkpoints()
        largest = max((_size_of(state.path) for state in waiting), default=0)
        room = MOST_WAITING_BYTES // largest if largest else 0
        # + 1 for the checkpoint that is to be written
        return max(self._config.checkpoints.keep, min(len(waiting) + 1, room))

    def _waiting_checkpoints(self) -> list[checkpoints.State]:
        """Return the checkpoints that still wait for the evaluator or for Keras callbacks.

        Checkpoints wait for the evaluator only if the setting `checkpoints.every_epochs` asks for them.
        """
        is_scored = self._config.checkpoints.every_epochs is not None and self._config.cluster.evaluator
        # After a roll-back, checkpoints of steps below the last scored one may be new, so each step is looked up.
        # Callbacks skip such checkpoints, because they were called for these epochs before.
        scored = {row.step for row in read_rows(self._run_dir.evaluation, EvaluationRow)} if is_scored else set()
        called = last_row(self._run_dir.callbacks, CallbacksRow)
        return [
            state
            for state in checkpoints.states(self._run_dir.checkpoints)
            if (is_scored and state.step not in scored) or (called is not None and state.step > called.step)
        ]

    @property
    def _checkpoint_every_s(self) -> float:
        """The seconds between checkpoints.

        With the setting "auto", they equal the training time before the last checkpoint, but they are at least
        `FIRST_S` and at most `LONGEST_S`.
        """
        if (setting := self._config.checkpoints.every_seconds) != AUTO:
            return setting
        since_s = self._clock() - self._saved[self._run_dir.checkpoints]
        return min(LONGEST_S, max(FIRST_S, self._progress.clock.seconds - since_s))

    def save_first(self, problem: str) -> None:
        """Save the initial weights if checkpoints are scored after training, so that the curves of all modes begin there."""
        if self._config.evaluation.after_training and not self._progress.applied:
            self._try_to_save(self._run_dir.checkpoints, problem)

    def save_last(self, problem: str) -> None:
        """Save the last checkpoint, and remove the snapshots if they are useless now.

        The snapshots stay if the shards have not applied the same steps at the last checkpoint, because a run with
        fewer servers may have to continue from one of them. Only snapshots of this and earlier leaders are removed,
        because a later leader may have begun while this one was frozen.

        Raises:
          RunFailed: the disk refuses the checkpoint, or the rows of the ledger that the checkpoint counts.
        """
        aligned = self._save(self._run_dir.checkpoints, problem)
        if aligned or self._config.shards == 1:  # otherwise fewer servers may need an aligned snapshot to continue from
            try:
                checkpoints.remove_all(self._run_dir.snapshots, self._term)
            except OSError as error:
                self._notify(
                    DISK_REFUSES(f"the last checkpoint is written, but the snapshots can't be removed: {error}")
                )

    def _save(self, directory: Path, problem: str) -> bool:
        """Save the state. Return whether an aligned state of several shards was saved.

        In an aligned state, all shards have applied the same steps. A snapshot that is not aligned is not saved if it
        would replace an aligned one.
        """
        began, is_snapshot = self._clock(), directory == self._run_dir.snapshots
        share = self._ledger_reader.changed_share if is_snapshot else 0.0
        extent = self._extent_of_snapshot(share) if is_snapshot else Extent.WHOLE
        since = self._full if extent is Extent.CHANGED else None
        if extent is Extent.FULL:
            self._full = None  # until the new full snapshot is written
        checkpoint = self._read_state(extent, since, problem)
        aligned = self._config.shards > 1 and is_aligned(checkpoint.arrays)
        spare = checkpoint.step if aligned else self._aligned.get(directory)
        if is_snapshot and not aligned and spare == checkpoint.step:
            # This snapshot would replace the aligned snapshot of the same name. Fewer servers can continue only from
            # the aligned one, and the new one contains hardly more work.
            self._saved[directory] = self._clock()
            return False
        keep = SNAPSHOTS_KEPT if is_snapshot else self._checkpoints_kept()
        with self._heartbeat():
            path = checkpoints.save(directory, checkpoint, keep, spare)
        if extent is Extent.FULL and checkpoint.pieces:
            self._full, self._built_on_full = checkpoints.as_full_state(path, checkpoint), 0.0
        elif extent is Extent.CHANGED:
            self._built_on_full += share
        self._note_saved(directory, checkpoint.step, aligned=aligned)
        self.last_seconds = self._clock() - began
        self._ended = self._clock()
        return aligned

    def _extent_of_snapshot(self, changed_share: float) -> Extent:
        """Return which table rows the next snapshot holds: all, or only the changed ones if their share is small."""
        is_small = changed_share <= MOST_CHANGED and self._built_on_full + changed_share <= 1
        return Extent.CHANGED if self._full and is_small else Extent.FULL

    def _read_state(self, extent: Extent, since: FullState | None, problem: str) -> checkpoints.Checkpoint:
        """Read the state from the servers, check it for divergence, and print the lines of `lines_of` about it."""
        found = self._ledger_reader.snapshot(extent)
        pieces = {name: array for name, array in found.items() if isinstance(array, Pieces)}
        arrays = {name: array for name, array in found.items() if not isinstance(array, Pieces)}
        if WEIGHTS in pieces:
            pieces[WEIGHTS] = self._looking_for_divergence(pieces[WEIGHTS])
        else:
            self.diverged = not all_finite(arrays[WEIGHTS])
        for line in self._lines_of(arrays):
            self._notify(line)
        step = min(of_shard.version for of_shard in counts_of(arrays[COUNTERS]))
        return checkpoints.Checkpoint(step, arrays, self._meta(step, problem), pieces, since)

    def _meta(self, step: int, problem: str) -> CheckpointMeta:
        times = self._progress.clock.times
        stretch = counted_work(
            self._ledger_reader.pieces,
            term=self._term,
            step=step,
            workers=workers_at_start(self._config, self._before),
            rules=self._rules,
            problem=problem,
        )
        return CheckpointMeta(
            leaders=[*self._before, stretch],
            config=self._config.model_dump(mode="json"),
            dataset_kind=self._dataset_kind,
            train_seconds=times.seconds,
            examples=self._progress.examples,
            times=times,
            progress=self._progress.state,
            data=self._data,
            network=self._network,
        )

    def _note_saved(self, directory: Path, step: int, *, aligned: bool) -> None:
        """Note what was saved. Call it only after the save, because a save that the disk refuses stays due."""
        if aligned:
            self._aligned[directory] = step
        if self._aligned_states is not None:
            self._aligned_states.note_saved(aligned, step)
        self._saved[directory] = self._clock()
        if directory == self._run_dir.checkpoints:
            self._epochs = self._whole_epochs()
            self._hold()

    def _looking_for_divergence(self, weights: Pieces) -> Pieces:
        """Return pieces with the same content. Reading them sets `diverged` if a weight is NaN or infinite."""

        def read() -> Iterator[np.ndarray]:
            for piece in weights.read():
                self.diverged = self.diverged or not all_finite(piece)
                yield piece

        return replace(weights, read=read)

    @contextlib.contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Call `saving` at intervals, so that the training does not seem to stand still while a large state is written.

        If no update was applied since `saving` was last called, do not call it: the training stands still, and this has
        to be noticed.
        """
        over, moved = threading.Event(), self._progress.applied > self._reported_at

        def report() -> None:
            for _ in range(SAVE_TOLD_AT_MOST if moved else 0):
                if over.wait(SAVE_TOLD_EVERY_S):
                    return
                self._reported_at = self._progress.applied
                self._saving()

        thread = threading.Thread(target=report, name="saving", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def check_disk(
    config: RunConfig,
    run_dir: RunDir,
    state_bytes: int,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> None:
    """Raise UserError if the disk has no room for the states that a run keeps. `state_bytes`: the size of one state.

    A run keeps `checkpoints.keep` checkpoints, the best one, the snapshots, and the state that is being written.
    """
    kept = config.checkpoints.keep + 1 + SNAPSHOTS_KEPT + 1
    there = sum(state.path.stat().st_size for state in checkpoints.states(*run_dir.states))
    if kept * state_bytes > (room := free_bytes(run_dir.root) + there):
        raise UserError(
            f"checkpoints.keep: got {config.checkpoints.keep}: with the snapshots and the best checkpoint, the run "
            f"keeps {kept} states of {state_bytes / 1e9:.2f} GB each, but '{run_dir.root}' has room for only "
            f"{room / 1e9:.2f} GB: keep fewer checkpoints, or choose another run directory"
        )


def _size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it can't be read, or another process has removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def all_finite(values: np.ndarray) -> bool:
    """Return whether all values are finite.

    If their sum is finite, they are. Otherwise a second pass checks each value, because a sum may overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())
