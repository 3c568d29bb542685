"""Track the progress of a run: the updates handed out, the updates applied, and sums over them."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.errors import RunFailed
from ps_cluster.files.values import finite
from ps_cluster.runs import step_set
from ps_cluster.runs.checkpoints import COUNTERS, WAITING, ProgressState
from ps_cluster.runs.ledger import COLUMNS, COUNTS, TIME_COLUMNS, Counts, ShardJoiner, counts_of, rows_of
from ps_cluster.runs.result_rows import (
    Gradients,
    KeyedUse,
    ProgressRow,
    Proof,
    ServerSize,
    TableTraffic,
    TrainingOutcome,
    TrainingResult,
    Updates,
)
from ps_cluster.runs.step_set import StepSet
from ps_cluster.runs.times import TrainingClock
from ps_cluster.runs.training_phases import Phase
from ps_cluster.server.store import Ledgers
from ps_cluster.training.applied_totals import AppliedTotals
from ps_cluster.training.dispatch_tracker import OpenDispatches

RATE_WINDOW_S = 10.0
FIRST_UPDATE_S = 600.0
GAPS = 9  # the number of measurements kept for each worker; their median is its pace, so a few pauses do not count
ROUNDING = 1e-9  # the largest error of a quotient that is a whole number, such as 0.3 / 0.1
SUMMED = ("loss", "learning_rate", "staleness", "metric", "examples")


class _Totals(NamedTuple):
    """The numbers of updates and examples that had been applied when the ledger was read."""

    monotonic_s: float
    updates: int
    examples: int


class RunProgress:
    """Counts scheduled and applied updates, as of the last check of the ledger. Finished updates use no memory.

    Attributes:
      clock: counts the seconds of training.
      total: the number of updates of the whole run.
      scheduled_updates: the updates that were handed out. The chief records them when it hands them out.
      positions: for each shard, the number of rows that were read from its ledger.
      missing_steps: int64 [k], the step ids that were under way before a resume, in ascending order.
      next_step: the highest step id that was handed out before a resume, plus 1; 0 without a resume.
      counts: int64 [ps, len(COUNTS)], the shards' counters at the last check.
      ends_with_open_updates: whether this leader ends while updates are still under way, so that these updates stay
        undone.
      held_at: the first update that may not be handed out yet, because a checkpoint has to be written before it; None
        if there is no such update. See the setting `checkpoints.exact`.
    """

    def __init__(
        self,
        config: RunConfig,
        train_examples: int,
        clock: TrainingClock | None = None,
        *,
        metric: str = "accuracy",
        life: str | None = None,
    ):
        """Start counting at 0.

        Args:
          metric: the field of a progress row that holds the objective's metric (config/objectives.py).
          life: the unique id of the launcher's process, for progress rows; None without a launcher.
        """
        self.clock = clock or TrainingClock()
        self.scheduled_updates = StepSet()
        self.missing_steps, self.next_step = np.zeros(0, np.int64), 0
        self.positions = [0] * config.shards
        self.counts = np.zeros([config.shards, len(COUNTS)], np.int64)
        self.ends_with_open_updates = False
        self.held_at: int | None = None
        self._train_examples = config.examples_seen(train_examples)
        self._metric, self._life = metric, life
        self._config = config
        self.total = config.total_updates(train_examples)
        self._steps_per_update = config.steps_per_update
        self._joiner = ShardJoiner(config.shards, shared=config.chosen_mode.shares_steps)
        self._applied_steps = StepSet()
        self._dispatches = OpenDispatches()
        self._handing_out = threading.Lock()  # the chief hands out steps in one thread and reads the ledger in another
        self._tally = AppliedTotals()
        self._sums, self._summed_rows = dict.fromkeys(SUMMED, 0.0), 0  # since the last progress row
        self._recent: deque[_Totals] = deque()  # within RATE_WINDOW_S
        # (worker, pid) → when its newest update was applied, unix s.
        self._last_update: dict[tuple[int, int], float] = {}
        self._gaps: dict[int, deque[float]] = {}  # worker → the mean seconds between its updates, one value per check

    def resume(self, arrays: Mapping[str, np.ndarray], state: ProgressState) -> None:
        """Continue from a checkpoint. `arrays`: its arrays COUNTERS and WAITING. `state`: the progress in it."""
        self.positions = [of_shard.accepted for of_shard in counts_of(arrays[COUNTERS])]
        self.counts = arrays[COUNTERS]
        scheduled, self._applied_steps = step_set.from_state(state.scheduled), step_set.from_state(state.applied)
        self._tally = AppliedTotals(state.tally)
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
            tally=self._tally.state,
            mixed=self._joiner.mixed,
        )

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

    def take_late_dispatches(self, after_s: float, workers: int) -> list[np.ndarray]:
        """Return the open steps (int64 [k]) of each dispatch that is late. See `OpenDispatches.take_late`."""
        with self._handing_out:
            return self._dispatches.take_late(after_s, workers)

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
          ledgers: the result of `without_clock_jumps`.

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
            self._tally.add_work(of_shard)  # the joined row names only the worker of the first shard
        now = self.clock.monotonic
        self._recent.append(_Totals(now, self.applied, self.examples))
        while now - self._recent[0].monotonic_s > RATE_WINDOW_S:
            self._recent.popleft()

    def _count_rows(self, rows: np.ndarray) -> None:
        self._applied_steps.add(rows["step"].astype(np.int64))
        with self._handing_out:
            self._dispatches.take(rows)
        seconds = self.clock.seconds_at(rows["applied_time"])
        self.clock.note_updates(seconds)
        self._tally.add(rows, seconds)
        self._measure(rows)
        for name in SUMMED:
            # Progress rows have the learning rate that was applied. Rows of the ledger have the scheduled rate.
            applied = rows["rate_factor"] if name == "learning_rate" else 1.0
            self._sums[name] += float((rows[name] * applied).sum())
        self._summed_rows += len(rows)

    def _measure(self, rows: np.ndarray) -> None:
        """Measure the mean time between the updates of each worker's process, including all waits of the worker.

        All times in this measurement come from the server's clock: they are the times at which updates were applied.
        """
        for worker, pid in np.unique(np.stack([rows["worker"], rows["pid"]], axis=1).astype(np.int64), axis=0).tolist():
            times = rows["applied_time"][(rows["worker"] == worker) & (rows["pid"] == pid)]
            last = float(times.max())
            if (before := self._last_update.get((worker, pid))) is not None:
                self._gaps.setdefault(worker, deque(maxlen=GAPS)).append(max(0.0, last - before) / len(times))
            self._last_update[worker, pid] = last

    @property
    def step_seconds(self) -> float | None:
        """The seconds that a step of the slowest worker takes; None until one worker has been measured."""
        gaps = list(self._gaps.values())  # another thread may add a worker meanwhile
        return max(map(median, gaps), default=None)

    @property
    def longest_update_seconds(self) -> float:
        """The longest time between two updates of a healthy run, in seconds.

        It is estimated from the settings and the measured times of steps.
        """
        return self._config.longest_update_seconds(self.step_seconds or 0.0)

    @property
    def longest_wait_seconds(self) -> float:
        """The seconds without an update after which the next update counts as late.

        The value is at least `FIRST_UPDATE_S` until a step has been measured.
        """
        return max(self.longest_update_seconds, FIRST_UPDATE_S if self.step_seconds is None else 0.0)

    def without_clock_jumps(self, ledgers: Ledgers) -> Ledgers:
        """Return `ledgers` with all times corrected for changes of the machine's clock since the training began."""
        self.clock.poll()
        rows = [of_shard.copy() for of_shard in ledgers.rows]
        for of_shard in rows:
            for name in TIME_COLUMNS:
                of_shard[name] = self.clock.without_clock_jumps(of_shard[name])
        return Ledgers(rows, ledgers.counts)

    def has_no_loss(self, least: int) -> bool:
        """Return whether there were at least `least` steps, all of them with a loss that is NaN or infinite."""
        return self._tally.gradients >= least and self._tally.bad_losses == self._tally.gradients

    @property
    def counts_of_shards(self) -> list[Counts]:
        """The counters of each shard at the last check of the ledger."""
        return counts_of(self.counts)

    @property
    def applied(self) -> int:
        """The number of updates applied."""
        if self._steps_per_update > 1:  # only the parameter server knows which rounds are over
            return self.counts_of_shards[0].version
        return self._tally.gradients

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
        return self._tally.examples

    @property
    def staleness(self) -> Counter[int]:
        """The histogram of staleness: staleness → number of steps applied with it so far."""
        return self._tally.staleness.copy()

    def updates_per_second(self) -> float:
        return self._per_second(lambda totals: totals.updates)

    def examples_per_second(self) -> float:
        return self._per_second(lambda totals: totals.examples)

    def epochs_per_second(self) -> float:
        return self.examples_per_second() / self._train_examples

    def _per_second(self, number: Callable[[_Totals], int]) -> float:
        """Return how fast a number grows, per second; 0 until this is known.

        `number`: a function that reads the number from a `_Totals`.
        """
        if not self._recent:
            return 0.0
        oldest, newest = self._recent[0], self._recent[-1]
        seconds = newest.monotonic_s - oldest.monotonic_s
        return (number(newest) - number(oldest)) / seconds if seconds > 0 else 0.0

    def take_row(self, phase: Phase, *, written: int = 0, save_seconds: float | None = None) -> ProgressRow:
        """Return a row of metrics/progress.jsonl with means over the updates since the previous call, and reset the means.

        Each argument becomes the field of the same name.
        """
        sums, count = self._sums, self._summed_rows
        self._sums, self._summed_rows = dict.fromkeys(SUMMED, 0.0), 0

        def mean(name: str) -> float | None:
            """Return the mean of a ledger column.

            Return None if there are no rows. Also return None if the mean is not finite, because JSON can't hold it
            (see `diverged`).
            """
            return finite(sums[name] / count) if count else None

        metric = finite(sums["metric"] / sums["examples"]) if sums["examples"] else None
        times = self.clock.times
        with self._handing_out:
            scheduled, dispatches = self.scheduled_updates.count, self._dispatches.pids()
        return ProgressRow(
            time=self.clock.unix,
            monotonic=self.clock.monotonic,
            life=self._life,
            phase=phase,
            applied=self.applied,
            scheduled=scheduled,
            total=self.total,
            examples=self.examples,
            examples_per_second=self.examples_per_second(),
            train_seconds=times.seconds,
            times=times,
            epoch=self.epochs,
            loss=mean("loss"),
            diverged=not math.isfinite(sums["loss"]),
            # The sums are rounded, so a share may be above 1 by a rounding error.
            accuracy=min(metric, 1.0) if metric is not None and self._metric == "accuracy" else None,
            error=metric if self._metric == "error" else None,
            learning_rate=mean("learning_rate"),
            staleness_mean=mean("staleness"),
            staleness=self._tally.staleness_buckets(),
            goodput=times.goodput,
            dropped=max(of_shard.dropped for of_shard in self.counts_of_shards),
            workers=self._tally.workers(),
            dispatches=dispatches,
            written=written,
            save_seconds=save_seconds,
            longest_wait_seconds=self.longest_wait_seconds,
        )

    @property
    def tables(self) -> TableTraffic | None:
        """How many rows of embedding tables the applied updates pulled and pushed; None without embedding tables."""
        tally = self._tally
        return TableTraffic(rows=tally.rows, row_values=tally.row_values) if tally.rows else None

    def result(
        self,
        outcome: TrainingOutcome | None = None,
        *,
        proof: Proof | None = None,
        duplicated: int | None = None,
        keyed: Sequence[KeyedUse] = (),
        parameter_servers: Sequence[ServerSize] = (),
    ) -> TrainingResult:
        """Return the content of training.json. Each argument is the value of the field of the same name.

        Args:
          outcome: None stands for "completed" if all updates are applied, and otherwise for "stopped".
        """
        times, applied = self.clock.times, self.applied
        backups = self._config.chosen_mode.late_workers(self._config)
        return TrainingResult(
            outcome=outcome or ("completed" if self.completed else "stopped"),
            bad_losses=self._tally.bad_losses,
            train_seconds=times.seconds if times.last_update is None else times.last_update,
            rolled_back_seconds=times.rolled_back,
            interrupted_seconds=times.interrupted,
            goodput=times.goodput,
            examples_per_second=self._tally.examples_per_second(times.last_update, backups),
            updates=Updates(
                scheduled=self.scheduled_updates.count,
                applied=applied,
                duplicated=duplicated,
                lost=self.scheduled_updates.count - applied,
                replays_refused=max(of_shard.refused for of_shard in self.counts_of_shards),
                mixed=self._joiner.mixed,
            ),
            gradients=Gradients(
                scheduled=self.scheduled_updates.count * self._steps_per_update,
                applied=self._tally.gradients,
                dropped=max(of_shard.dropped for of_shard in self.counts_of_shards),
                per_update=self._config.gradients_per_update,
            ),
            tables=self.tables,
            keyed=list(keyed),
            proof=proof,
            staleness=self._tally.staleness_summary(),
            workers=self._tally.workers(),
            parameter_servers=list(parameter_servers),
        )
