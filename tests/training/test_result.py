"""The result of a training is what its progress was at the end."""

import numpy as np
import pytest

from ps_cluster.runs.result_rows import Gradients, Updates, WorkerRow
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.training.result import training_result
from tests.helpers.progress import NO_UPDATE, Machine, applied, make_config, make_progress, poll


@pytest.fixture
def machine():
    return Machine()


def result_of(progress, outcome="stopped", **settings):
    return training_result(make_config(**settings), progress, outcome)


def test_the_result_tells_lost_and_refused_apart():
    progress = make_progress()
    progress.note_scheduled(np.arange(4))
    rows = applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 2.0), (2, 3, 0, 0, 7, 3.0))
    poll(progress, rows, refused=2, dropped=5)
    result = result_of(progress)
    assert result.updates == Updates(scheduled=4, applied=3, lost=1, replays_refused=2, mixed=0)
    assert result.gradients == Gradients(scheduled=4, applied=3, dropped=5, per_update=1)


def test_an_update_of_a_round_has_a_gradient_of_every_worker_but_the_backup_workers():
    rounds = {"mode": "sync-ps", "backup_workers": 1}
    progress = make_progress(steps=2, **rounds)
    progress.note_scheduled(np.arange(2))
    rows = applied((0, 1, 0, 0, 7, 1.0), (2, 1, 0, 2, 9, 2.0), (3, 2, 0, 0, 7, 3.0), (4, 2, 0, 1, 8, 4.0))
    poll(progress, rows, version=2)
    result = result_of(progress, **rounds)
    assert result.updates == Updates(scheduled=2, applied=2, lost=0, replays_refused=0, mixed=0)
    assert result.gradients == Gradients(scheduled=6, applied=4, dropped=0, per_update=2)


def test_the_result_has_the_sums_over_all_updates():
    progress = make_progress(ps=2)
    of_first = applied((0, 1, 0, 0, 7, 1.0), (1, 2, 1, 1, 8, 2.0), loss=[np.nan, 1.0], rows=3, row_values=6)
    of_second = applied((0, 1, 0, 0, 7, 1.0), (1, 2, 4, 1, 9, 2.0))
    poll(progress, of_first, of_second)
    result = result_of(progress, "completed")
    assert (result.outcome, result.bad_losses, result.updates.mixed) == ("completed", 1, 1)
    assert (result.staleness.histogram, result.tables.rows, result.tables.row_values) == ({"0": 1, "4": 1}, 6, 12)
    workers = [(worker.index, worker.pid) for worker in result.workers]
    assert workers == [(0, 7), (1, 8)] and result.workers[0] == WorkerRow(index=0, pid=7, updates=1, examples=10)


def test_training_ends_with_its_last_update_whatever_is_written_after_it(machine):
    progress = make_progress(machine=machine)
    progress.clock.start()
    progress.note_scheduled(np.arange(3))
    machine.now = 60.0
    poll(progress, applied((0, 1, 0, 0, 7, 2.0), (1, 2, 0, 1, 8, 4.0), (2, 3, 0, 0, 7, 5.0)))
    result = result_of(progress)
    assert result.train_seconds == 5 and result.goodput == 1
    assert result.examples_per_second == 10 / 1, "from the first update of the last worker"


def test_a_resumed_run_without_an_update_has_trained_no_longer(machine):
    progress = make_progress(machine=machine)
    before = TrainingTimes(seconds=33.0, first_update=1.0, last_update=30.0, resumed_update=1.0, stood=((1.0, 30.0),))
    progress.clock.restart(before, 30.0)
    progress.clock.start()
    machine.now = 7.0
    poll(progress, NO_UPDATE)
    assert result_of(progress).train_seconds == 30 and result_of(progress).goodput == 1
