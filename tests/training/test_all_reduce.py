"""The loop of one worker of an all-reduce, with played rounds and saves, on a clock that only these move."""

import math
import signal
from types import SimpleNamespace

import pytest

from ps_cluster.system.stop_signals import Drain
from ps_cluster.training.all_reduce import train_until_end
from ps_cluster.training.all_reduce_graph import Request, RoundEnd
from ps_cluster.training.round_watch import RoundWatch
from ps_cluster.training.saver import LONGEST_SAVE_S
from tests.helpers.fake_time import FakeTime

LIMIT_S = 60.0


class Progress:
    def __init__(self, total):
        self.applied, self.total, self.next_checkpoint_at = 0, total, total

    @property
    def completed(self):
        return self.applied == self.total

    def note_scheduled(self, updates):
        pass


class Worker:
    """A worker, and its session. Each round has one update.

    Args:
      rounds_s: how long each round takes.
      saves_s: how long a save takes.
      leads: whether this is worker 0.
      announced: the requests of worker 0, as another worker receives them.
    """

    broken = None

    def __init__(self, rounds_s, saves_s=0.0, leads=True, announced=None):
        self.leads, self.time, self.drain = leads, FakeTime(), Drain()
        self.progress, self.saver = Progress(len(rounds_s)), SimpleNamespace(may_be_due_at=self._may_be_due_at)
        self.due_from = math.inf  # the first number of updates with which a save is due
        self.requests, self.saved_at, self.exceeded_s = [], [], []
        self._rounds_s, self._saves_s, self._announced = rounds_s, saves_s, announced
        self._watch = RoundWatch(lambda: LIMIT_S, lambda limit_s: None, check_every_s=math.inf, clock=self.time.clock)

    def train(self):
        config = SimpleNamespace(updates_at_once=1)
        return train_until_end(config, self, self._run_updates, self.drain, self._watch)

    def _may_be_due_at(self, applied):
        return applied >= self.due_from

    def _run_updates(self, updates, request):
        position = self.progress.applied
        self._pass(self._rounds_s[position])
        self.requests.append(request)
        self.progress.applied += updates
        return RoundEnd(self._announced[position] if self._announced else request, [5.0, 5.0])

    def keep_up(self, phase, *, may_save):
        if self.leads and may_save and self.progress.applied >= self.due_from:
            self._pass(self._saves_s)
            self.saved_at.append(self.progress.applied)
            self.due_from = math.inf

    def note_problem(self, problem):
        assert problem is None

    def _pass(self, seconds):
        self.time.sleep(seconds)
        self.exceeded_s.append(self._watch.exceeded_s)


def test_worker_0_does_not_give_up_its_own_save_within_ten_minutes():
    worker = Worker([1.0, 1.0, 1.0], saves_s=LONGEST_SAVE_S)
    worker.due_from = 2
    worker.train()
    assert worker.saved_at == [2] and not any(worker.exceeded_s)


@pytest.mark.parametrize(
    ("announced", "third_round_s", "exceeded_s"),
    [
        (Request.SAVE, LONGEST_SAVE_S + LIMIT_S, None),
        (Request.SAVE, LONGEST_SAVE_S + LIMIT_S + 1, LONGEST_SAVE_S + LIMIT_S),
        (Request.CONTINUE, LIMIT_S, None),
        (Request.CONTINUE, LIMIT_S + 1, LIMIT_S),
    ],
)
def test_another_worker_waits_ten_minutes_longer_only_for_a_save_that_worker_0_has_announced(
    announced, third_round_s, exceeded_s
):
    requests = [Request.CONTINUE, announced, Request.CONTINUE, Request.CONTINUE]
    worker = Worker([1.0, 1.0, third_round_s, 1.0], leads=False, announced=requests)
    worker.train()
    assert worker.exceeded_s == [None, None, exceeded_s, None]


def test_a_round_after_the_one_that_waited_for_a_save_has_the_usual_limit_again():
    requests = [Request.SAVE, Request.CONTINUE, Request.CONTINUE]
    worker = Worker([1.0, 500.0, LIMIT_S + 1], leads=False, announced=requests)
    worker.train()
    assert worker.exceeded_s == [None, None, LIMIT_S]


def test_after_a_save_worker_0_notices_a_lost_worker_as_fast_as_without_one():
    worker = Worker([1.0, LIMIT_S + 1], saves_s=5.0)
    worker.due_from = 1
    worker.train()
    assert worker.exceeded_s == [None, None, LIMIT_S], "a round, a save, and a round"


def test_a_save_that_becomes_due_during_a_round_is_announced_with_the_next_round_and_made_after_it():
    worker = Worker([1.0, 1.0, 1.0])
    worker.time.at(1.5, lambda: setattr(worker, "due_from", 0))  # in the second round
    worker.train()
    assert worker.requests == [Request.CONTINUE, Request.CONTINUE, Request.SAVE]
    assert worker.saved_at == [3]


@pytest.mark.parametrize(
    ("number", "broken", "request_of_0"),
    [
        (signal.SIGINT, None, Request.STOP),
        (signal.SIGTERM, None, Request.CONTINUE_LATER),
        (signal.SIGTERM, "diverged", Request.STOP),
    ],
)
def test_only_worker_0_asks_all_workers_to_stop_and_saves_nothing_before_they_have(number, broken, request_of_0):
    leader, other = Worker([1.0, 1.0]), Worker([1.0], leads=False, announced=[request_of_0])
    leader.due_from = 0
    for worker in (leader, other):
        worker.broken = broken
        worker.drain.ask(number)
        assert worker.train() is request_of_0
    assert (leader.requests, other.requests) == ([request_of_0], [Request.CONTINUE])
    assert not leader.saved_at
