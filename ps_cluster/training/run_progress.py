"""The progress of a run: the updates handed out, the updates applied, and sums over them."""

from __future__ import annotations

import math
import os
import threading
from collections import Counter, deque
from collections.abc import Mapping
from statistics import median

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.errors import RunFailed
from ps_cluster.run import step_set
from ps_cluster.run.ledger import COLUMNS, COUNTS, TIME_COLUMNS, Joiner, rows_of
from ps_cluster.run.rows.checkpoint import ProgressState
from ps_cluster.run.rows.progress import ProgressRow
from ps_cluster.run.rows.training import Gradients, TrainingResult, Updates
from ps_cluster.run.run_dir import LIFE
from ps_cluster.run.step_set import StepSet
from ps_cluster.run.training_clock import TrainingClock
from ps_cluster.training.open_dispatches import OpenDispatches
from ps_cluster.training.parameter_store import Ledgers
from ps_cluster.training.tally import Tally

RATE_WINDOW_S = 10.0
FIRST_UPDATE_S = 600.0
GAPS = 9  # of each worker, whose median is what its steps take: a pause of some is no pace
SUMMED = ("loss", "learning_rate", "staleness", "metric", "examples")


class RunProgress:
    """Counts what was scheduled and applied, as of the last look at the ledger. Finished updates take no memory.

    Attributes:
      clock: counts the seconds of training.
      scheduled_updates: the updates that were handed out, noted by the chief when it does so.
      positions: how many rows of each slice were read.
      missing_steps: int64 [k], the step ids that were under way before a resume, in order.
      next_step: the lowest step id above all that were handed out before a resume.
      counts: int64 [ps, len(COUNTS)], the slices' counters at the last look.
    """

    def __init__(
        self, config: RunConfig, train_examples: int, clock: TrainingClock | None = None, *, metric: str = "accuracy"
    ):
        """Count from nothing. `metric`: the field of a row that has the objective's metric (catalogue/objectives.py)."""
        self.clock = clock or TrainingClock()
        self.scheduled_updates = StepSet()
        self.missing_steps, self.next_step = np.zeros(0, np.int64), 0
        self.positions = [0] * config.slices
        self.counts = np.zeros([config.slices, len(COUNTS)], np.int64)
        self._train_examples = config.examples_seen(train_examples)
        self._metric = metric
        self._config = config
        self._total = config.total_updates(train_examples)
        self._steps_per_update = config.steps_per_update
        self._joiner = Joiner(config.slices, shared=config.mode_kind.shares_steps)
        self._applied_steps = StepSet()
        self._dispatches = OpenDispatches()
        self._handing_out = threading.Lock()  # the chief hands out in one thread, and counts in another
        self._tally = Tally()
        self._fresh, self._fresh_rows = dict.fromkeys(SUMMED, 0.0), 0  # sums since the last row of progress
        self._points: deque[tuple[float, int, int]] = deque()
        self._last_update: dict[
            tuple[int, int], float
        ] = {}  # (worker, pid) → when its newest update was applied, unix s
        self._gaps: dict[int, deque[float]] = {}  # worker → mean seconds between its updates, at each of the last looks

    def resume(self, arrays: Mapping[str, np.ndarray], state: ProgressState) -> None:
        """Go on from a checkpoint: its arrays "counts" and "waiting", and its `state`."""
        self.positions = arrays["counts"][:, COUNTS.index("accepted")].tolist()
        self.counts = arrays["counts"]
        scheduled, self._applied_steps = step_set.from_state(state.scheduled), step_set.from_state(state.applied)
        self._tally = Tally(state.tally)
        self.next_step = scheduled.end * self._steps_per_update
        self.missing_steps = self._applied_steps.missing_below(self.next_step)
        # Steps that were under way are handed out again, and are counted then.
        applied = self._applied_steps if self._steps_per_update == 1 else StepSet(self.applied)
        self.scheduled_updates = scheduled.both(applied)
        self._joiner.mixed = state.mixed
        self._joiner.waiting_slices = arrays["waiting"][:, 0].astype(np.int64)
        self._joiner.waiting = rows_of(arrays["waiting"][:, 1:])

    @property
    def state(self) -> ProgressState:
        """The progress as it goes into a checkpoint's meta."""
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
        """Rows of steps that some slices still lack: float64 [k, 1 + columns], the first column is the slice."""
        table = self._joiner.waiting.view(np.float64).reshape(-1, len(COLUMNS))
        return np.concatenate([self._joiner.waiting_slices[:, None].astype(np.float64), table], axis=1)

    @property
    def closed_steps(self) -> int:
        """All steps below it were accepted by every slice, or never will be."""
        return self._applied_steps.first_missing

    @property
    def end_of_window(self) -> int:
        """The first step id that may not be handed out yet, as the parameter servers' ledgers have no room for it."""
        return self.closed_steps + self._config.ledger_window

    def scheduled(self, updates: np.ndarray) -> None:
        """Note that `updates` (int64 [k]) were handed out as one dispatch. Except in rounds, an update is one step."""
        with self._handing_out:
            self.scheduled_updates.add(updates)
            if self._steps_per_update == 1:  # a round belongs to all workers
                self._dispatches.add(updates)

    def late_dispatches(self, after_s: float, workers: int) -> list[np.ndarray]:
        """Return the open steps (int64 [k]) of each dispatch to hand out again. See `OpenDispatches.late`."""
        with self._handing_out:
            return self._dispatches.late(after_s, workers)

    def update(self, ledgers: Ledgers) -> None:
        """Add the rows and counters of a look, with times already corrected by `unsettled`.

        Raises:
          RunFailed: rows are missing. (The proof finds steps that were accepted twice.)
        """
        self.positions = [position + len(rows) for position, rows in zip(self.positions, ledgers.rows)]
        accepted = ledgers.counts[:, COUNTS.index("accepted")].tolist()
        if self.positions != accepted:
            raise RunFailed(f"the parameter servers accepted {accepted} gradients, but left {self.positions} rows")
        self.counts = ledgers.counts
        fresh = self._joiner.add(ledgers.rows)
        if len(fresh):
            self._take(fresh)
        for own in ledgers.rows[1:] if self._config.mode_kind.shares_steps else ():
            self._tally.add_work(own)  # the row that all are joined to has the worker of the first slice
        now = self.clock.monotonic
        self._points.append((now, self.applied, self.examples))
        while now - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()

    def _take(self, rows: np.ndarray) -> None:
        self._applied_steps.add(rows["step"].astype(np.int64))
        with self._handing_out:
            self._dispatches.take(rows)
        seconds = self.clock.seconds_at(rows["applied_time"])
        self.clock.note_updates(seconds)
        self._tally.add(rows, seconds)
        self._measure(rows)
        for name in SUMMED:
            self._fresh[name] += float(rows[name].sum())
        self._fresh_rows += len(rows)
        if self._steps_per_update > 1:  # late steps of backup workers never come, once their round is over
            self._applied_steps.close_below(self.applied * self._steps_per_update)

    def _measure(self, rows: np.ndarray) -> None:
        """Note what the steps of `rows` took, with all that a worker waits for. Only one clock is asked."""
        for worker, pid in np.unique(np.stack([rows["worker"], rows["pid"]], axis=1).astype(np.int64), axis=0).tolist():
            times = rows["applied_time"][(rows["worker"] == worker) & (rows["pid"] == pid)]
            last = float(times.max())
            if (before := self._last_update.get((worker, pid))) is not None:
                self._gaps.setdefault(worker, deque(maxlen=GAPS)).append(max(0.0, last - before) / len(times))
            self._last_update[worker, pid] = last

    @property
    def step_seconds(self) -> float | None:
        """The seconds of a step of the slowest worker; None until a worker has had two."""
        return max(map(median, self._gaps.values()), default=None)

    @property
    def longest_update_seconds(self) -> float:
        """The longest expected gap between updates in a healthy run, as settings and measured steps say."""
        return self._config.longest_update_seconds(self.step_seconds or 0.0)

    @property
    def longest_wait_seconds(self) -> float:
        """The seconds to wait for an update; until steps are measured `FIRST_UPDATE_S`, as nothing else knows the network."""
        return max(self.longest_update_seconds, FIRST_UPDATE_S if self.step_seconds is None else 0.0)

    def unsettled(self, ledgers: Ledgers) -> Ledgers:
        """Return `ledgers` with times as if nobody had set the machine's clock since the training began."""
        self.clock.look()
        rows = [own.copy() for own in ledgers.rows]
        for own in rows:
            for name in TIME_COLUMNS:
                own[name] = self.clock.unsettled(own[name])
        return Ledgers(rows, ledgers.counts)

    @property
    def applied(self) -> int:
        """The number of updates applied."""
        return self._tally.gradients // self._config.gradients_per_update

    @property
    def total(self) -> int:
        """The number of updates of the whole run."""
        return self._total

    @property
    def completed(self) -> bool:
        return self.applied == self._total

    @property
    def outstanding(self) -> int:
        """The number of updates scheduled and not yet applied."""
        return self.scheduled_updates.count - self.applied

    @property
    def epochs(self) -> float:
        """Passes over the training examples so far."""
        return self.examples / self._train_examples

    @property
    def examples(self) -> int:
        return self._tally.examples

    @property
    def staleness(self) -> Counter[int]:
        """Staleness → number of steps applied so far."""
        return self._tally.staleness.copy()

    def updates_per_second(self) -> float:
        return self._rate(1)

    def _rate(self, field: int) -> float:
        if not self._points:
            return 0.0
        oldest, newest = self._points[0], self._points[-1]
        return (newest[field] - oldest[field]) / (newest[0] - oldest[0]) if newest[0] > oldest[0] else 0.0

    def row(self, phase: str) -> ProgressRow:
        """Return a row of metrics/progress.jsonl; means are over the updates since the row before."""
        sums, count = self._fresh, self._fresh_rows
        self._fresh, self._fresh_rows = dict.fromkeys(SUMMED, 0.0), 0

        def mean(name: str) -> float | None:
            """Return a mean; None without rows, and for NaN or infinity, which JSON lacks ("diverged" tells those)."""
            return _finite(sums[name] / count) if count else None

        times = self.clock.times
        with self._handing_out:
            scheduled, dispatches = self.scheduled_updates.count, self._dispatches.pids()
        return ProgressRow(
            time=self.clock.unix,
            monotonic=self.clock.monotonic,
            life=os.environ.get(LIFE),
            phase=phase,
            applied=self.applied,
            scheduled=scheduled,
            total=self._total,
            examples=self.examples,
            examples_per_second=self._rate(2),
            train_seconds=times.seconds,
            times=times,
            epoch=self.epochs,
            loss=mean("loss"),
            diverged=not math.isfinite(sums["loss"]),
            learning_rate=mean("learning_rate"),
            staleness_mean=mean("staleness"),
            staleness=self._tally.staleness_buckets(),
            goodput=times.goodput,
            dropped=self._most("dropped"),
            workers=self._tally.workers(),
            dispatches=dispatches,
            longest_wait_seconds=self.longest_wait_seconds,
        ).model_copy(update={self._metric: _finite(sums["metric"] / sums["examples"]) if sums["examples"] else None})

    def _most(self, count: str) -> int:
        return int(self.counts[:, COUNTS.index(count)].max())

    def result(self) -> TrainingResult:
        """Return the content of training.json without the proof."""
        times, applied = self.clock.times, self.applied
        backups = self._config.mode_kind.late_workers(self._config)
        return TrainingResult(
            completed=self.completed,
            bad_losses=self._tally.bad_losses,
            train_seconds=times.seconds if times.last_update is None else times.last_update,
            rolled_back_seconds=times.rolled_back,
            interrupted_seconds=times.interrupted,
            goodput=times.goodput,
            examples_per_second=self._tally.examples_per_second(times.last_update, backups),
            updates=Updates(
                scheduled=self.scheduled_updates.count,
                applied=applied,
                lost=self.scheduled_updates.count - applied,
                replays_refused=self._most("refused"),
                mixed=self._joiner.mixed,
            ),
            gradients=Gradients(
                scheduled=self.scheduled_updates.count * self._steps_per_update,
                applied=self._tally.gradients,
                dropped=self._most("dropped"),
                per_update=self._config.gradients_per_update,
            ),
            staleness=self._tally.staleness_summary(),
            workers=self._tally.workers(),
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
