"""Which workers are found silent, and when, in the progress rows of a simulated training."""

import math
from collections import Counter

import pytest

from ps_cluster.config import build_config
from ps_cluster.launch.silence import SilenceDetector
from ps_cluster.launch.stages import RunLimits
from ps_cluster.runs.result_rows import ProgressRow, WorkerRow

ROW_S = 0.5


class Training:
    """A leader that writes a row every half second, of workers that have `rates` updates a second while they have work.

    It hands out dispatches of `size` steps, and keeps one waiting for every worker until `total` steps are handed out.
    """

    def __init__(self, mode="async", workers=3, size=4, total=math.inf, wait_s=None, **settings):
        values = {"mode.name": mode, "data.dataset": "synthetic"} | settings
        values |= {"optimizer.rule": "sgd"} if mode == "elastic" else {}
        self.config = build_config(None, values).with_values({"cluster.workers": workers})
        self.wait_s = self.config.longest_update_seconds() if wait_s is None else wait_s
        self.now = 0.0
        self.silence = SilenceDetector(self.config, RunLimits(), self.now)
        self.pids = {index: 100 + index for index in range(workers)}
        self.rates = dict.fromkeys(self.pids, 10.0)
        self.updates = Counter()  # by pid
        self.in_hand = Counter()  # by pid: steps that are left of its dispatch
        self.at = {}  # pid → the pid that had the newest update of its dispatch
        self.size, self.total = size, total
        self._handed_out, self._left_over, self._part = 0, [], Counter()

    def _take(self, pid):
        """Take over a dispatch that a worker has left, or a new one."""
        if self._left_over:
            self.in_hand[pid], self.at[pid] = self._left_over.pop()
            return
        self.in_hand[pid], self.at[pid] = min(self.size, self.total - self._handed_out), None
        self._handed_out += self.in_hand[pid]

    def _work(self, pid, steps):
        """Do the open steps. `steps`: the number of steps for which there was time."""
        self._part[pid] += steps
        while self.in_hand[pid] and self._part[pid] >= 1 - 1e-6:
            self._part[pid] -= 1
            self.updates[pid] += 1
            self.in_hand[pid] -= 1
            self.at[pid] = pid
            if not self.in_hand[pid]:
                self._take(pid)
        self._part[pid] *= self.in_hand[pid] > 0

    def row(self, seconds=ROW_S, phase="training"):
        self.now += seconds
        for index, pid in self.pids.items():
            if not self.in_hand[pid]:
                self._take(pid)
            self._work(pid, self.rates[index] * seconds)
        waiting = [None] * len(self.pids) if self._handed_out < self.total else []
        at = [self.at[pid] for pid in self.in_hand if self.in_hand[pid]]
        applied = self.updates.total()
        return ProgressRow(
            phase=phase,
            applied=applied,
            scheduled=applied + self.in_hand.total() + self.size * len(waiting),
            workers=[WorkerRow(index=pid % 100, pid=pid, updates=count) for pid, count in self.updates.items()],
            longest_wait_seconds=self.wait_s,
            dispatches=at + [pid for _, pid in self._left_over] + waiting,
        )

    def see(self, **options):
        row = self.row(**options)
        self.silence.add_row(row, self.pids, self.now)

    def hand_out_no_more(self):
        self.total = self._handed_out

    def train(self, seconds, **options):
        """Train; return the workers that were found silent, each with the time at which it was found."""
        found, end = [], self.now + seconds
        while self.now < end:
            self.see(**options)
            if silent := self.silence.take_longest_silent():
                found.append((silent.worker, round(self.now, 1)))
        return found

    def restart(self, worker, rate=10.0):
        pid = self.pids[worker]
        if left := self.in_hand.pop(pid, 0):
            self._left_over.append((left, self.at[pid]))
        self.pids[worker] += 100
        self.rates[worker] = rate

    def stall(self, seconds, **options):
        """Train, but without any update. Afterwards all workers continue as before. Return what `train` returns."""
        rates, self.rates = self.rates, dict.fromkeys(self.rates, 0)
        found = self.train(seconds, **options)
        self.rates = rates
        return found


@pytest.mark.parametrize("mode", ["async", "bounded", "elastic"])
def test_the_one_that_has_no_updates_while_others_have_is_found_after_ten_seconds(mode):
    training = Training(mode)
    assert training.train(20) == []
    training.rates[1] = 0
    assert training.train(9.5) == []
    ((worker, at),) = training.train(1.5)
    assert worker == 1 and 30 <= at <= 31
    assert training.train(60) == [], "it is told once"


@pytest.mark.parametrize(
    ("method", "is_found"), [("none", True), ("gather", True), ("drop", False), ("same_version", False)]
)
def test_a_worker_without_updates_is_not_silent_where_a_method_may_have_dropped_all_its_gradients(method, is_found):
    training = Training(**{"staleness.method": method})
    training.train(20)
    training.rates[1] = 0
    assert [worker for worker, _ in training.train(15)] == [1] * is_found


def test_the_deadline_follows_from_what_the_workers_steps_take():
    training = Training()
    training.rates[1] = 0.5  # two seconds a step: it has 20 of them
    training.train(30)
    training.rates[1] = 0
    ((worker, at),) = training.train(60)
    assert worker == 1 and 30 + 38 <= at <= 30 + 43


def test_nobody_is_silent_while_all_are_slow_or_one_is():
    training = Training()
    training.rates = {0: 0.05, 1: 0.02, 2: 0.05}
    assert training.train(3600) == []


@pytest.mark.parametrize("phase", ["training", "draining"])
@pytest.mark.parametrize("mode", ["async", "bounded", "elastic"])
def test_who_waits_idle_while_others_work_through_their_last_dispatch_is_not_silent(mode, phase):
    training = Training(mode, size=64, total=3 * 64 + 64)
    training.rates = {0: 2.0, 1: 2.0, 2: 2.5}  # the last one takes the last dispatch
    assert training.train(27) == [] and training.updates[102] > 64
    assert training.train(60, phase=phase) == [] and training.updates.total() == training.total


def test_who_has_no_work_until_there_is_room_in_the_ledger_is_not_silent():
    training = Training(size=64)
    training.rates[1] = 0.5
    training.train(30)
    training.hand_out_no_more()
    assert training.train(60) == []
    training.total = math.inf
    assert training.train(30) == []


@pytest.mark.parametrize("phase", ["training", "draining"])
def test_who_is_held_within_its_last_dispatch_is_found_while_another_goes_on_and_a_third_one_is_idle(phase):
    training = Training(size=64, total=3 * 64)
    training.rates = {0: 10.0, 1: 2.0, 2: 2.0}
    training.train(15)
    training.rates[2] = 0
    ((worker, at),) = training.train(16, phase=phase)
    assert worker == 2 and 25 <= at <= 26


def test_a_last_dispatch_without_an_update_might_be_anybodys():
    training = Training(size=64, total=4 * 64)
    training.rates[2] = 12.8
    training.train(5)
    assert training.at[102] is None, "it has just taken the last one"
    training.rates[2] = 0
    assert training.train(300) == []


def test_a_dispatch_that_a_dead_worker_has_left_is_taken_for_nobodys_who_lives():
    training = Training(size=64, total=3 * 64)
    training.rates = {0: 10.0, 1: 10.0, 2: 2.0}
    training.train(6)
    training.restart(2, rate=0.5)
    training.rates[0] = training.rates[1] = 0.5
    assert training.train(90) == []


@pytest.mark.parametrize("mode", ["async", "sync-ps", "bounded", "elastic"])
def test_what_holds_up_all_counts_against_nobody(mode):
    training = Training(mode)
    training.train(20)
    assert training.stall(55) == [] and training.train(20) == []


@pytest.mark.parametrize("rates", [(0.95, 1.0, 1.05), (0.95, 0.1, 1.05), (0.05, 0.02, 0.05), (10, 0.1, 10)])
@pytest.mark.parametrize(("mode", "trained_s"), [("async", 39.5), ("async", 40), ("bounded", 40), ("elastic", 40.5)])
def test_nor_where_its_steps_are_longer_than_a_row_and_the_workers_out_of_phase(mode, rates, trained_s):
    training = Training(mode)
    training.rates = dict(enumerate(rates))
    training.train(200 + trained_s)
    assert training.stall(59) == [] and training.train(20) == []


def test_a_leader_that_writes_no_rows_for_a_while_accuses_nobody():
    """It saves and hands out no steps meanwhile. Afterwards one worker needs a little longer than the others."""
    training = Training()
    training.train(20)
    training.rates[1] = 0
    training.see(seconds=50.0)
    assert training.train(8) == []
    training.rates[1] = 10.0
    assert training.train(20) == []


def test_a_new_process_has_time_to_start():
    training = Training()
    training.train(20)
    training.restart(1, rate=0)
    start_s = RunLimits.first_update_s + training.config.longest_update_seconds()
    assert training.train(start_s - 1) == []
    ((worker, at),) = training.train(3)
    assert worker == 1 and 20 + start_s <= at <= 22 + start_s


def test_a_first_update_that_takes_as_long_as_all_of_a_slow_network_is_no_silence():
    training = Training(wait_s=600.0)
    training.rates = {0: 1 / 64, 1: 1 / 100, 2: 1 / 64}
    assert training.train(3600) == []


def test_when_all_have_come_to_the_end_the_one_that_stopped_first_is_found():
    training = Training()
    training.train(20)
    training.rates[2] = 0
    training.train(3)
    ((worker, at),) = training.stall(9)
    assert worker == 2 and 30 <= at <= 31


def test_of_two_silent_ones_both_are_found_one_after_the_other():
    training = Training()
    training.train(20)
    training.rates[1] = 0
    training.train(2)
    training.rates[2] = 0
    assert [worker for worker, _ in training.train(15)] == [1, 2]


@pytest.mark.parametrize("mode", ["async", "sync-ps", "bounded", "elastic", "single"])
def test_before_the_first_update_nobody_is_silent(mode):
    training = Training(mode)
    training.rates = dict.fromkeys(training.rates, 0)
    assert training.train(50) == []


def test_in_rounds_it_is_the_one_whose_gradient_is_missing():
    training = Training("sync-ps")
    training.train(20)
    training.rates = dict.fromkeys(training.rates, 0)
    for index in (0, 2):
        training.updates[100 + index] += 1
    ((worker, at),) = training.train(12)
    assert worker == 1 and 30 <= at <= 31.5


def test_a_gradient_that_is_missing_is_known_by_all_processes_that_the_worker_had():
    training = Training("sync-ps")
    training.train(20)
    training.restart(1)
    training.rates = dict.fromkeys(training.rates, 0)
    training.train(1)
    training.rates = dict.fromkeys(training.rates, 10.0)
    training.train(20)
    training.rates = dict.fromkeys(training.rates, 0)
    for pid in (training.pids[1], 102):
        training.updates[pid] += 1
    assert [worker for worker, _ in training.train(15)] == [0]


@pytest.mark.parametrize(
    "settings", [{"mode": "sync"}, {"mode": "sync-ps", "mode.backup_workers": 1}], ids=["sync", "backup workers"]
)
def test_where_nobody_can_be_told_apart_nobody_is_accused(settings):
    training = Training(**settings)
    training.train(20)
    training.rates[1] = 0
    assert training.train(100) == []


def test_each_time_it_takes_twice_as_long_up_to_the_limit_of_a_standstill():
    training, waits = Training(), []
    for _ in range(5):
        training.train(20)
        training.rates[1], silent_from = 0, training.now
        ((_, at),) = training.train(65)
        waits.append(at - silent_from)
        training.restart(1)
    assert waits == pytest.approx([10.5, 20.5, 40.5, 60.5, 60.5], abs=0.6)


def test_a_cluster_that_starts_anew_has_no_past():
    training = Training()
    training.train(20)
    training.rates[1] = 0
    training.train(9)
    training.see(phase="connecting")
    assert training.train(50) == []


def test_rows_of_a_save_repeat_the_row_before_and_nobody_is_forgotten_for_them():
    training = Training()
    training.train(20)
    training.rates[1] = 0
    assert training.train(6) == []
    training.see(phase="saving")
    ((worker, at),) = training.train(6)
    assert worker == 1 and at <= 32
