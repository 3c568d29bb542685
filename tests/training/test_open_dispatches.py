"""Which dispatches are late: a run of slow steps, where most of what is handed out waits for a free worker."""

from collections import deque

import numpy as np
import pytest

from ps_cluster.training.dispatch_tracker import OpenDispatches
from tests.helpers.ledgers import rows_of

STEP_S, SIZE, LATE_AFTER_S, LOOK_S = 15.0, 4, 66.4, 0.25


class SlowRun:
    """Workers that take dispatches out of one queue, and a chief that keeps two for each of them under way.

    Attributes:
      applied: the steps that were applied, once each. computed: every computation of a step that ended.
      handed_out: the dispatches, repeats among them.
    """

    def __init__(self, workers, hangs=(), step_s=None):
        """`hangs`: workers that never end the first step they begin. `step_s`: worker → seconds of its steps."""
        self.now = 0.0
        self.dispatches = OpenDispatches(clock=lambda: self.now)
        self.applied, self.computed, self.handed_out, self.repeats = set(), 0, 0, 0
        self._queue, self._next = deque(), 0
        self._workers = [iter(())] * workers  # the steps that are left of its dispatch
        self._at = [None] * workers  # (step, when it ends)
        self._step_s = dict.fromkeys(range(workers + 1), STEP_S) | dict.fromkeys(hangs, np.inf) | (step_s or {})

    def add_worker(self):
        self._workers.append(iter(()))
        self._at.append(None)

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self._hand_out()
            self._work()
            self.now += LOOK_S
            for steps in self.dispatches.take_late(LATE_AFTER_S, len(self._workers)):
                self.repeats += 1
                self._queue.append(steps)

    def _hand_out(self):
        while self._next - len(self.applied) < 2 * SIZE * len(self._workers):
            steps = np.arange(self._next, self._next + SIZE)
            self._next += SIZE
            self.dispatches.add(steps)
            self._queue.append(steps)

    def _work(self):
        for worker, at in enumerate(self._at):
            if at is not None and self.now >= at[1]:
                self.computed += 1
                if at[0] not in self.applied:
                    self.applied.add(at[0])
                    self.dispatches.take(rows_of([at[0]], pid=100 + worker))
                at = None
            if at is None:
                self._at[worker] = self._begin(worker)

    def _begin(self, worker):
        while True:
            for step in self._workers[worker]:
                if step not in self.applied:  # one that is there is not computed again
                    return step, self.now + self._step_s[worker]
            if not self._queue:
                return None
            self._workers[worker] = iter(self._queue.popleft().tolist())


@pytest.mark.parametrize("workers", [1, 6])
def test_of_slow_steps_none_is_computed_twice(workers):
    run = SlowRun(workers)
    run.run(3600 + 2 * LOOK_S)
    assert (len(run.applied), run.computed, run.repeats) == (240 * workers, 240 * workers, 0)


@pytest.mark.parametrize("hangs", [[1], [1, 4], [0, 1, 2, 3, 4]])
def test_the_steps_of_workers_that_hang_are_repeated_once_and_none_is_lost(hangs):
    run, others = SlowRun(6, hangs), 6 - len(hangs)
    run.run(3600)
    assert run.repeats == len(hangs), "also where the repeats wait for longer than what counts as late"
    assert run.computed == len(run.applied) >= others * 240 - 6
    assert set(range(others * 220)) <= run.applied


def test_where_all_hang_nobody_can_take_their_steps_and_one_that_comes_later_does():
    run = SlowRun(2, hangs=[0, 1])
    run.run(600)
    assert (run.repeats, len(run.applied)) == (0, 0)
    run.add_worker()
    run.run(600)
    assert run.repeats == 2 and set(range(32)) <= run.applied


def test_a_slow_worker_whose_steps_were_repeated_computes_none_that_are_there():
    run = SlowRun(2, step_s={0: 200.0})
    run.run(3600)
    assert run.computed - len(run.applied) <= run.repeats, "the one that it was at"
