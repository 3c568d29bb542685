"""Detect workers whose process lives but makes no progress, e.g. in the kernel, in a deadlock, or under a debugger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ps_cluster.config import STEPS_IN_TIME, RunConfig
from ps_cluster.config.modes import Waits
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.launch.stages import RunLimits
from ps_cluster.runs.result_rows import ProgressRow, SilenceRow
from ps_cluster.runs.training_phases import UNDER_WAY

STEPS = 20  # a step that takes this many times its worker's mean step counts as one that never ends
PAUSE_STEPS = 2  # a pause between two updates of up to this many mean steps is normal
# The leader writes a row every 0.5 s. A longer gap counts only this long, as the leader hands out no steps in it.
LONGEST_ROW_S = 1.0


class _Worker:
    """The updates of a worker process and the times between them, as read from progress rows. Times are in seconds."""

    def __init__(self, pid: int):
        self.pid = pid
        self.updates = 0
        self.passed_s = 0.0  # time without an update while others had some, since its last update or its start
        self.still_s = 0.0  # time with work, since the last update of any worker
        self._first_updates = 0
        self._since_s = 0.0  # since its last update, not counting stalls of all workers
        self._working_s = 0.0  # from its first update to its last, not counting such stalls

    def move(self, updates: int) -> None:
        if self._first_updates:
            self._working_s += self._since_s
        else:
            self._first_updates = updates
        self.updates, self.passed_s, self._since_s = updates, 0.0, 0.0

    def record_other_progress(self, seconds: float, *, as_usual: bool) -> None:
        """Record that some worker has made an update, `seconds` after the previous update of any worker.

        `as_usual`: False if this update ends a stall of all workers.
        """
        self._since_s += seconds
        self.passed_s += self.still_s * as_usual
        self.still_s = 0.0

    @property
    def stopped_first(self) -> bool:
        """True if this worker made no update for clearly longer than usual while other workers made updates."""
        return self.passed_s > PAUSE_STEPS * (self.step_s or 0.0) + LONGEST_ROW_S

    @property
    def step_s(self) -> float | None:
        """The mean seconds per update; None until two rows with updates have been read."""
        steps = self.updates - self._first_updates
        return self._working_s / steps if steps else None


class SilenceDetector:
    """Detects silent workers from the progress rows that the leader writes.

    A worker is silent while it makes no update, although it has work and other workers make updates. A dispatch is
    one or more steps that the chief sends to a worker. A worker has work if it has finished part of a dispatch that is
    still open, or if the number of open dispatches is at least the number of workers. (Towards the end, and in a drain,
    fewer dispatches are open, and a worker without a dispatch is idle.) A stall of all workers does not count, because
    its cause is a save, a parameter server or the machine. A stall is recognised when a worker makes the next update:
    the time since the last update of any worker is then much longer than a usual step of the worker that made it.

    If no worker makes updates although updates are due, the silent worker is the one that clearly stopped first. The
    other workers stopped later, when they had no work left. In `sync-ps`, the silent worker is the one whose gradient
    is missing. In `bounded`, a worker without updates may be waiting, so its time counts only while other workers make
    updates.

    A silent worker can't be identified in `sync` and in `single`. It can't be identified either if late gradients are
    dropped, because a dropped gradient leaves no trace, or if the last dispatch hangs before its first update. In these
    cases only the limit `RunLimits.standstill_s` applies.
    """

    def __init__(self, config: RunConfig, limits: RunLimits, now_s: float):
        self._waits = config.chosen_mode.synchrony.waits
        late = config.chosen_mode.late_workers(config) or METHODS[config.staleness.method].drops
        self._can_tell = config.chosen_mode.has_parameter_servers and not late
        self._limits_now = self._limits = limits
        self._workers: dict[int, _Worker] = {}
        self._totals: Counter[int] = Counter()  # by worker index: updates of all its processes so far
        self._ended: Counter[int] = Counter()  # by worker index: how often the worker was killed because of silence
        self._seen_s = now_s
        self._still_s = 0.0  # since the last update of any worker, while updates were due

    def forget(self) -> None:
        """Forget all workers and their times. Call this when all processes start again."""
        self._workers.clear()
        self._still_s = 0.0

    def add_row(self, row: ProgressRow, pids: Mapping[int, int], now_s: float) -> None:
        """Read a progress row. `pids`: index → pid of the current worker processes."""
        seconds, self._seen_s = min(now_s - self._seen_s, LONGEST_ROW_S), now_s
        if row.phase == "saving":  # it repeats the previous row
            return
        self._limits_now = self._limits.for_waits_of(row.longest_wait_seconds)
        if row.phase not in UNDER_WAY:
            return self.forget()
        updates = {(worker.index, worker.pid): worker.updates for worker in row.workers}
        self._totals = Counter()
        for (index, _), count in updates.items():
            self._totals[index] += count
        self._workers = {index: self._process(index, pid) for index, pid in pids.items()}
        own = {index: updates.get((index, pid), 0) for index, pid in pids.items()}
        self._count(own, seconds, self._with_work(row.dispatches), due=row.scheduled > row.applied)

    def _process(self, index: int, pid: int) -> _Worker:
        known = self._workers.get(index)
        return known if known is not None and known.pid == pid else _Worker(pid)

    def _with_work(self, dispatches: Sequence[int | None]) -> set[int]:
        """Return the indices of the workers that certainly have work.

        `dispatches`: for each open dispatch, the pid of the worker process that has finished a part of it, or None if
        no process has finished a part of it yet.
        """
        if self._waits is Waits.IN_ROUNDS or len(dispatches) >= len(self._workers):
            return set(self._workers)
        return {index for index, worker in self._workers.items() if worker.pid in dispatches}

    def _count(self, updates: Mapping[int, int], seconds: float, with_work: set[int], *, due: bool) -> None:
        self._still_s = (self._still_s + seconds) * due
        moving = {index: worker for index, worker in self._workers.items() if updates[index] > worker.updates}
        for index in with_work - moving.keys():
            self._workers[index].still_s += seconds
        if not moving:
            return
        longest_s = max(LONGEST_ROW_S, PAUSE_STEPS * max(worker.step_s or 0.0 for worker in moving.values()))
        for worker in self._workers.values():
            worker.record_other_progress(min(self._still_s, longest_s), as_usual=self._still_s <= longest_s)
        for index, worker in moving.items():
            worker.move(updates[index])
        self._still_s = 0.0

    def take_longest_silent(self) -> SilenceRow | None:
        """Return the worker that has been silent longest, and forget it. Return None if no worker is past its deadline.

        Call this only to end the process of that worker. The worker's next process gets a deadline twice as long.
        """
        overdue = {i: s for i in self._workers if (s := self._silent_s(i)) > self._deadline_s(i)}
        if not overdue:
            return None
        index = max(overdue, key=overdue.__getitem__)
        worker = self._workers.pop(index)
        self._ended[index] += 1
        self._still_s = 0.0  # other workers need time to get its steps
        return SilenceRow(worker=index, pid=worker.pid, updates=worker.updates, seconds=overdue[index])

    def _silent_s(self, index: int) -> float:
        worker = self._workers[index]
        in_rounds = self._waits is Waits.IN_ROUNDS
        # In rounds, a worker counts only if its gradient is missing while the open round has gradients of other workers.
        is_missed = self._totals[index] < max(self._totals.values(), default=0)
        if not self._can_tell or (in_rounds and not is_missed):
            return 0.0
        stopped_first = in_rounds or (worker.stopped_first and self._waits is not Waits.FOR_A_BOUND)
        return worker.passed_s + self._still_s * stopped_first

    def _deadline_s(self, index: int) -> float:
        """Return how many seconds a worker may be silent. Each kill for silence doubles the time, up to a limit."""
        step_s, limits = self._workers[index].step_s, self._limits_now
        if step_s is None:
            return limits.first_update_s
        longest_s = max(limits.standstill_s, STEPS_IN_TIME * step_s)
        return min(max(limits.silent_s, STEPS * step_s) * 2.0 ** self._ended[index], longest_s)
