"""Rows of progress as a table of what each worker did, and who is found silent when."""

import pytest

from ps_cluster.cluster.policy import Limits
from ps_cluster.cluster.silence import Silence
from ps_cluster.config import build_config

ROW_S = 0.5


class Training:
    """A leader that writes a row every half second, of workers that have `rates` updates a second."""

    def __init__(self, mode="async", workers=3, **settings):
        values = {"training.mode": mode, "cluster.workers": workers, "data.dataset": "synthetic"} | settings
        values |= {"optimizer.rule": "sgd"} if mode == "elastic" else {}
        self.config = build_config(None, values)
        self.now = 0.0
        self.silence = Silence(self.config, Limits.of(self.config), lambda: self.now)
        self.pids = {index: 100 + index for index in range(workers)}
        self.updates = dict.fromkeys(self.pids.values(), 0.0)
        self.rates = dict.fromkeys(self.pids, 10.0)
        self.gone = []

    def row(self, seconds=ROW_S, due=True, phase="training"):
        self.now += seconds
        for index, pid in self.pids.items():
            self.updates[pid] = self.updates.get(pid, 0.0) + self.rates[index] * seconds
        owners = {pid: pid % 100 for pid in self.updates}
        counts = {pid: int(count + 1e-6) for pid, count in self.updates.items()}
        rows = [{"index": owners[pid], "pid": pid, "updates": count} for pid, count in counts.items() if count]
        applied = sum(counts.values())
        return {"phase": phase, "applied": applied, "scheduled": applied + 10 * due, "workers": rows}

    def train(self, seconds, **options):
        """Returns the workers that were found silent, each with the time at which it was."""
        found, end = [], self.now + seconds
        while self.now < end:
            self.silence.see(self.row(**options), self.pids)
            if silent := self.silence.longest():
                found.append((silent.worker, round(self.now, 1), silent))
        return [(worker, at) for worker, at, _ in found]

    def restart(self, worker, rate=10.0):
        self.pids[worker] += 100
        self.rates[worker] = rate


@pytest.mark.parametrize("mode", ["async", "bounded", "elastic"])
def test_the_one_that_has_no_updates_while_others_have_is_found_after_ten_seconds(mode):
    training = Training(mode)
    assert training.train(20) == []
    training.rates[1] = 0
    assert training.train(9.5) == []
    ((worker, at),) = training.train(1.5)
    assert worker == 1 and 30 <= at <= 31
    assert training.train(60) == [], "it is told once"


def test_what_is_told_of_it_is_how_long_it_was_silent_and_what_it_had_done():
    training = Training()
    training.train(20)
    training.rates[1] = 0
    silent = None
    while silent is None:
        training.silence.see(training.row(), training.pids)
        silent = training.silence.longest()
    assert (silent.worker, silent.pid, silent.updates) == (1, 101, 200) and 10 < silent.seconds < 11


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


def test_a_step_that_takes_minutes_has_time_for_it():
    training = Training(**{"cluster.straggler": "1:+100s"})
    training.rates[1] = 1 / 105
    assert training.train(3600) == []


@pytest.mark.parametrize("mode", ["async", "sync-ps", "bounded", "elastic"])
def test_what_holds_up_all_counts_against_nobody(mode):
    training = Training(mode)
    training.train(20)
    rates, training.rates = training.rates, dict.fromkeys(training.rates, 0)
    assert training.train(55) == []
    training.rates = rates
    assert training.train(20) == []


def test_a_leader_that_writes_no_rows_for_a_while_accuses_nobody():
    """It saves, and hands out nothing; afterwards one is a little slower to come back."""
    training = Training()
    training.train(20)
    training.rates[1] = 0
    training.silence.see(training.row(seconds=50.0), training.pids)
    assert training.train(8) == []
    training.rates[1] = 10.0
    assert training.train(20) == []


def test_a_new_process_has_time_to_start():
    training = Training()
    training.train(20)
    training.restart(1, rate=0)
    start_s = Limits.of(training.config).first_update_s
    assert training.train(start_s - 1) == []
    ((worker, at),) = training.train(3)
    assert worker == 1 and 20 + start_s <= at <= 22 + start_s


def test_when_all_have_come_to_the_end_the_one_that_stopped_first_is_found():
    training = Training()
    training.train(20)
    training.rates[2] = 0
    training.train(3)
    training.rates = dict.fromkeys(training.rates, 0)
    ((worker, at),) = training.train(9)
    assert worker == 2 and 30 <= at <= 31


def test_when_nothing_is_due_nobody_is_silent():
    training = Training()
    training.train(20)
    training.rates[2] = 0
    training.train(3)
    training.rates = dict.fromkeys(training.rates, 0)
    assert training.train(300, due=False) == []


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
    "settings", [{"mode": "sync"}, {"mode": "sync-ps", "training.backup_workers": 1}], ids=["sync", "backup workers"]
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
    training.silence.see(training.row(phase="connecting"), training.pids)
    assert training.train(50) == []
