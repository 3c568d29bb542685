"""Tells by its own progress which worker is alive and silent: stuck in the kernel, in a deadlock, under a debugger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ps_cluster.catalogue.modes import Waits
from ps_cluster.cluster.policy import Limits
from ps_cluster.config import RunConfig
from ps_cluster.rows.progress import ProgressRow

UNDER_WAY = ("training", "draining")  # phases in which workers have work
STEPS = 20  # a step that takes so many times its worker's mean is taken for one that never ends
LEAST_STEPS = 3  # however long they take
PAUSE_STEPS = 2  # so long there may be nothing between two updates of a worker
# The leader writes a row every half second. Where it had no time for one, it handed out no steps either.
LONGEST_ROW_S = 1.0


@dataclass(frozen=True)
class Silent:
    """A worker process that does nothing, and is to be ended."""

    worker: int
    pid: int
    updates: int  # that it had before
    seconds: float  # without one, while others had some or waited for it

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Worker:
    """One worker process, as the rows of progress tell of it."""

    def __init__(self, pid: int):
        self.pid = pid
        self.updates = 0
        self.passed_s = 0.0  # in which others had updates and it had none, since its last one or its start
        self._still_s = 0.0  # in which it had work, since anybody had an update
        self._first_updates = 0
        self._since_s = 0.0  # since its last update, without what held up all
        self._working_s = 0.0  # from its first update to its last one, likewise

    def has_moved(self, updates: int) -> bool:
        return updates > self.updates

    def move(self, updates: int) -> None:
        """Takes in new updates."""
        if self._first_updates:
            self._working_s += self._since_s
        else:
            self._first_updates = updates
        self.updates, self.passed_s, self._since_s = updates, 0.0, 0.0

    def stand(self, seconds: float) -> None:
        """Takes in that it had work for so long, and no update."""
        self._still_s += seconds

    def see_others(self, seconds: float, *, as_usual: bool) -> None:
        """Takes in that somebody had an update again, so long after the one before, which is usual or was a stall."""
        self._since_s += seconds
        self.passed_s += self._still_s * as_usual
        self._still_s = 0.0

    @property
    def stopped_first(self) -> bool:
        """Return whether others had updates for longer than lies between two of its own, seen from row to row."""
        return self.passed_s > PAUSE_STEPS * (self.step_s or 0.0) + LONGEST_ROW_S

    @property
    def step_s(self) -> float | None:
        """Mean seconds of an update; None while there was no second row with one."""
        steps = self.updates - self._first_updates
        return self._working_s / steps if steps else None


class Silence:
    """Watches the updates of every worker process in the rows of progress.

    Time counts against a worker while it has work and others have updates. It has work while a dispatch is open of
    which it has done a part, or while as many are open as there are workers. Towards the end and in a drain there are
    fewer, and who has none is idle. What holds up all does not count: a save, a parameter server, the machine. It shows
    by the first update after it, which comes later than is usual for its worker.

    Where all stand still though updates are due, the worker that stopped first is the one, if it clearly did: the
    others came to the end of what they could do without it. In `sync-ps` it is the one whose gradient is missing; in
    `bounded` who stands still may be waiting, so there others must go on. Nobody can be told apart in `sync`, in
    `single` and with backup workers, whose late gradients leave no trace. There, and where a last dispatch is held
    before its first update, the run's limit of a standstill has to do.
    """

    def __init__(self, config: RunConfig, limits: Limits, clock: Callable[[], float]):
        self._waits = config.mode_kind.waits
        self._tells = config.on_parameter_servers and not config.mode_kind.late_workers(config)
        self._limits = limits
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._totals: Counter[int] = Counter()  # updates of all processes that had the index
        self._ended: Counter[int] = Counter()
        self._seen_s = clock()
        self._still_s = 0.0  # since anybody had an update, while some were due

    def forget(self) -> None:
        """Starts anew: so do all processes."""
        self._workers.clear()
        self._still_s = 0.0

    def see(self, row: ProgressRow, pids: Mapping[int, int]) -> None:
        """Takes in a row of progress.

        Args:
          pids: index → pid of the worker processes that there are now.
        """
        now_s = self._clock()
        seconds, self._seen_s = min(now_s - self._seen_s, LONGEST_ROW_S), now_s
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
        """The workers that have a dispatch for sure. `dispatches`: of the open ones, the pid of who is at it."""
        if self._waits is Waits.IN_ROUNDS or len(dispatches) >= len(self._workers):
            return set(self._workers)
        return {index for index, worker in self._workers.items() if worker.pid in dispatches}

    def _count(self, updates: Mapping[int, int], seconds: float, with_work: set[int], *, due: bool) -> None:
        self._still_s = (self._still_s + seconds) * due
        moving = {index: worker for index, worker in self._workers.items() if worker.has_moved(updates[index])}
        for index in with_work - moving.keys():
            self._workers[index].stand(seconds)
        if not moving:
            return
        longest_s = max(LONGEST_ROW_S, PAUSE_STEPS * max(worker.step_s or 0.0 for worker in moving.values()))
        for worker in self._workers.values():
            worker.see_others(min(self._still_s, longest_s), as_usual=self._still_s <= longest_s)
        for index, worker in moving.items():
            worker.move(updates[index])
        self._still_s = 0.0

    def longest(self) -> Silent | None:
        """Return the worker that is silent for longest, of those beyond their deadline; its process counts as ended."""
        overdue = {i: s for i in self._workers if (s := self._silent_s(i)) > self._deadline_s(i)}
        if not overdue:
            return None
        index = max(overdue, key=overdue.get)
        worker = self._workers.pop(index)
        self._ended[index] += 1
        self._still_s = 0.0  # its steps have to come to others first
        return Silent(index, worker.pid, worker.updates, overdue[index])

    def _silent_s(self, index: int) -> float:
        worker = self._workers[index]
        in_rounds = self._waits is Waits.IN_ROUNDS
        if not self._tells or (in_rounds and not self._is_missed(index)):
            return 0.0
        stopped_first = in_rounds or (worker.stopped_first and self._waits is not Waits.FOR_A_BOUND)
        return worker.passed_s + self._still_s * stopped_first

    def _is_missed(self, index: int) -> bool:
        """Return whether others have given a gradient to the open round and this one has not."""
        return self._totals[index] < max(self._totals.values(), default=0)

    def _deadline_s(self, index: int) -> float:
        """Twice as long each time that it was ended: a deadline that is wrong is soon long enough."""
        step_s, limits = self._workers[index].step_s, self._limits
        if step_s is None:
            return limits.first_update_s
        longest_s = max(limits.standstill_s, LEAST_STEPS * step_s)
        return min(max(limits.silent_s, STEPS * step_s) * 2 ** self._ended[index], longest_s)
