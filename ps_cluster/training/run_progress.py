"""Track the progress of a run: which updates were handed out, and which were applied."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.errors import RunFailed
from ps_cluster.runs import step_set
from ps_cluster.runs.checkpoint_arrays import COUNTERS, WAITING
from ps_cluster.runs.checkpoints import ProgressState
from ps_cluster.runs.ledger import COLUMNS, COUNTS, Counts, ShardJoiner, counts_of, rows_of
from ps_cluster.runs.step_set import StepSet
from ps_cluster.runs.times import TrainingClock
from ps_cluster.server.store import Ledgers
from ps_cluster.training.applied_totals import AppliedTotals
from ps_cluster.training.dispatch_tracker import OpenDispatches
from ps_cluster.training.recent_speed import AppliedSoFar, RecentSpeed
from ps_cluster.training.row_means import RowMeans
from ps_cluster.training.worker_pace import WorkerPace

ROUNDING = 1e-9  # the largest error of a quotient that is a whole number, such as 0.3 / 0.1


class RunProgress:
    """Counts scheduled and applied updates, as of the last check of the ledger. Finished updates use no memory.

    Two threads use this object: one hands out steps (`note_scheduled`), and one adds what a check of the ledger has read
    (`update`).

    Attributes:
      clock: counts the seconds of training.
      total: the number of updates of the whole run.
      scheduled_updates: the updates that were handed out. The chief records them when it hands them out.
      positions: for each shard, the number of rows that were read from its ledger.
      missing_steps: int64 [k], the step ids that were under way before a resume, in ascending order.
      next_step: the highest step id that was handed out before a resume, plus 1; 0 without a resume.
      counts: int64 [ps, len(COUNTS)], the shards' counters at the last check.
      tally: sums over all applied steps.
      means: the means of the next progress row.
      pace: how long a step of a worker takes, and how long to wait for an update.
      speed: the present speed of the training.
      ends_with_open_updates: whether this leader ends while updates are still under way, so that these updates stay
        undone.
      held_at: the first update that may not be handed out yet, because a checkpoint has to be written before it; None
        if there is no such update. See the setting `checkpoints.exact`.
    """

    def __init__(self, config: RunConfig, train_examples: int, clock: TrainingClock | None = None):
        """Start counting at 0. `train_examples`: the number of training examples that the data set has."""
        self.clock = clock or TrainingClock()
        self.total = config.total_updates(train_examples)
        self.scheduled_updates = StepSet()
        self.missing_steps, self.next_step = np.zeros(0, np.int64), 0
        self.positions = [0] * config.shards
        self.counts = np.zeros([config.shards, len(COUNTS)], np.int64)
        self.tally, self.means = AppliedTotals(), RowMeans()
        self.pace, self.speed = WorkerPace(config), RecentSpeed()
        self.ends_with_open_updates = False
        self.held_at: int | None = None
        self._config = config
        self._train_examples = config.examples_seen(train_examples)
        self._steps_per_update = config.steps_per_update
        self._joiner = ShardJoiner(config.shards, shared=config.chosen_mode.shares_steps)
        self._applied_steps = StepSet()
        self._dispatches = OpenDispatches()
        self._handing_out = threading.Lock()  # guards changes of `scheduled_updates`, and `_dispatches`

    def resume(self, arrays: Mapping[str, np.ndarray], state: ProgressState) -> None:
        """Continue from a checkpoint. `arrays`: its arrays COUNTERS and WAITING. `state`: the progress in it."""
        self.positions = [of_shard.accepted for of_shard in counts_of(arrays[COUNTERS])]
        self.counts = arrays[COUNTERS]
        scheduled, self._applied_steps = step_set.from_state(state.scheduled), step_set.from_state(state.applied)
        self.tally = AppliedTotals(state.tally)
        self.next_step = scheduled.end * self._steps_per_update
        self.missing_steps = self._applied_steps.missing_below(self.next_step)
        # Steps that were under way are handed out again, and will be counted then.
        applied = self._applied_steps if self._steps_per_update == 1 else StepSet(self.applied)
        self.scheduled_updates = scheduled.both(applied)
        self._joiner.mixed = state.mixed
        self._joiner.waiting_shards = arrays[WAITING][:, 0].astype(np.int64)
        self._joiner.waiting = rows_of(arrays[WAITING][:, 1:])

    @property
    def state(self) -> ProgressState:
        """The progress, as it is saved in the metadata of a checkpoint."""
        with self._handing_out:
            scheduled = step_set.to_state(self.scheduled_updates)
        return ProgressState(
            scheduled=scheduled,
            applied=step_set.to_state(self._applied_steps),
            tally=self.tally.state,
            mixed=self.mixed,
        )

    @property
    def mixed(self) -> int:
        """The number of steps whose pushes to different shards came from different processes."""
        return self._joiner.mixed

    @property
    def waiting(self) -> np.ndarray:
        """The rows of steps that not all shards have accepted yet, float64 [k, 1 + columns]. Column 0 is the shard."""
        table = self._joiner.waiting.view(np.float64).reshape(-1, len(COLUMNS))
        return np.concatenate([self._joiner.waiting_shards[:, None].astype(np.float64), table], axis=1)

    @property
    def lowest_open_step(self) -> int:
        """The lowest open step id. Each step below it was accepted by every shard, or will never be accepted."""
        return self._applied_steps.first_missing

    @property
    def end_of_window(self) -> int:
        """The first step id that can't be handed out yet.

        It waits until the ledgers have room for it, or until a checkpoint is written that has to come first.
        """
        end = self.lowest_open_step + self._config.ledger_window
        held_at = self.held_at  # another thread may change it to None
        return end if held_at is None else min(end, held_at * self._steps_per_update)

    def end_of_dispatch(self, begin: int, updates: int) -> int:
        """Return the end (exclusive) of a dispatch that begins at update `begin` and has up to `updates` updates."""
        end = min(self.total, begin + updates)
        return end if self.held_at is None else min(end, self._end_of_epochs(begin))

    @property
    def is_held(self) -> bool:
        """Whether the next update has to wait for a checkpoint: all updates before `held_at` were handed out."""
        held_at = self.held_at  # another thread may change it to None
        return held_at is not None and self.scheduled_updates.first_missing >= held_at

    def note_scheduled(self, updates: np.ndarray) -> None:
        """Count updates that were handed out together.

        `updates`: int64 [k], the step ids of a dispatch, or in a mode with rounds the numbers of the rounds.
        """
        with self._handing_out:
            self.scheduled_updates.add(updates)
            if self._steps_per_update == 1:  # a round has no dispatches to track, because it belongs to all workers
                self._dispatches.add(updates)

    @property
    def end_of_scheduled(self) -> int:
        """The lowest number above all updates that were handed out."""
        with self._handing_out:
            return self.scheduled_updates.end

    def take_late_dispatches(self, after_s: float, workers: int) -> list[np.ndarray]:
        """Return the open steps (int64 [k]) of each dispatch that is late. See `OpenDispatches.take_late`."""
        with self._handing_out:
            return self._dispatches.take_late(after_s, workers)

    def dispatch_pids(self) -> list[int | None]:
        """Return the pid of the process that works on each open dispatch. See `OpenDispatches.pids`."""
        with self._handing_out:
            return self._dispatches.pids()

    def missing_in_round(self) -> list[int]:
        """Return the workers that have not pushed in the open round although others have; [] if there are no rounds."""
        if self._steps_per_update == 1:
            return []
        steps = np.arange(self._steps_per_update) + self.applied * self._steps_per_update
        missing = np.flatnonzero(~self._applied_steps.holds(steps)).tolist()
        return missing if len(missing) < self._steps_per_update else []

    def update(self, ledgers: Ledgers) -> None:
        """Add the rows and counters that a check of the ledgers has read.

        Args:
          ledgers: the ledgers, with times that `ledger_reader.without_clock_jumps` has corrected.

        Raises:
          RunFailed: rows are missing. (Steps that were accepted twice are found after the training, by the proof.)
        """
        self.positions = [position + len(rows) for position, rows in zip(self.positions, ledgers.rows)]
        accepted = [of_shard.accepted for of_shard in counts_of(ledgers.counts)]
        if self.positions != accepted:
            raise RunFailed(
                f"the parameter servers accepted {accepted} gradients, but their ledgers have {self.positions} rows"
            )
        self.counts = ledgers.counts
        joined = self._joiner.add(ledgers.rows)
        if len(joined):
            self._count_rows(joined)
        if self._steps_per_update > 1:  # once a round is over, the late steps of backup workers are never accepted
            self._applied_steps.close_below(self.applied * self._steps_per_update)
        for of_shard in ledgers.rows[1:] if self._config.chosen_mode.shares_steps else ():
            self.tally.add_work(of_shard)  # the joined row names only the worker of the first shard
        self.speed.add(AppliedSoFar(self.clock.monotonic, self.applied, self.examples))

    def _count_rows(self, rows: np.ndarray) -> None:
        self._applied_steps.add(rows["step"].astype(np.int64))
        with self._handing_out:
            self._dispatches.take(rows)
        seconds = self.clock.seconds_at(rows["applied_time"])
        self.clock.note_updates(seconds)
        self.tally.add(rows, seconds)
        self.means.add(rows)
        self.pace.add(rows)

    @property
    def counts_of_shards(self) -> list[Counts]:
        """The counters of each shard at the last check of the ledger."""
        return counts_of(self.counts)

    @property
    def applied(self) -> int:
        """The number of updates applied."""
        if self._steps_per_update > 1:  # only the parameter server knows which rounds are over
            return self.counts_of_shards[0].version
        return self.tally.gradients

    @property
    def completed(self) -> bool:
        return self.applied == self.total

    @property
    def outstanding(self) -> int:
        """The number of updates that are scheduled and not yet applied."""
        return self.scheduled_updates.count - self.applied

    @property
    def epochs(self) -> float:
        """The number of passes over the training examples so far."""
        return self.examples / self._train_examples

    @property
    def next_checkpoint_at(self) -> int:
        """The number of updates after which the next checkpoint is due by the setting `checkpoints.every_epochs`.

        If the run ends earlier, or without that setting, it is the number of all updates of the run. It depends only on
        the updates applied, so all workers of an all-reduce compute the same number.
        """
        return self._end_of_epochs(self.applied)

    def _end_of_epochs(self, update: int) -> int:
        """Return the lowest number of updates above `update` at which `checkpoints.every_epochs` asks for a checkpoint.

        If the run ends earlier, or without that setting, return the number of all updates of the run.
        """
        every = self._config.checkpoints.every_epochs
        if every is None:
            return self.total
        updates = every * self._train_examples / self._config.examples_per_update
        whole = math.floor(update / updates + ROUNDING) + 1
        return min(self.total, max(update + 1, math.ceil(whole * updates - ROUNDING)))

    @property
    def examples(self) -> int:
        return self.tally.examples

    def epochs_per_second(self) -> float:
        """Return the present speed of the training, in passes over the training examples."""
        return self.speed.examples_per_second / self._train_examples
