"""How long to wait for an update is learned from the workers' steps."""

from types import SimpleNamespace

import pytest

from ps_cluster.training.worker_pace import FIRST_UPDATE_S, WorkerPace
from tests.helpers.progress import applied, make_config


def waits(pace, *times_of_workers):
    """How long to wait for an update after each time (s after WALL) that a worker's next update was applied."""
    told = []
    for worker, time in times_of_workers:
        pace.add(applied((0, 1, 0, worker, 100 + worker, time)))
        told.append(pace.longest_wait_s)
    return told


@pytest.fixture
def pace():
    return WorkerPace(make_config())


def test_how_long_to_wait_for_an_update_is_learned_from_the_slowest_workers_steps(pace):
    assert pace.longest_wait_s == FIRST_UPDATE_S
    assert waits(pace, (0, 70), (1, 75)) == [FIRST_UPDATE_S] * 2, "no step is measured"
    assert waits(pace, (0, 134), (1, 175), (0, 198)) == [3 * 64, 3 * 100, 3 * 100]


def test_steps_that_are_seen_in_one_look_share_its_time(pace):
    waits(pace, (0, 70))
    pace.add(applied((1, 2, 0, 0, 100, 110.0), (2, 3, 0, 0, 100, 190.0)))
    assert pace.step_s == (190 - 70) / 2


def test_one_long_pause_teaches_nothing_and_a_new_process_begins_anew(pace):
    waits(pace, *((0, 10 * step) for step in range(5)))
    assert waits(pace, (0, 40 + 5000)) == [30]
    pace.add(applied((6, 7, 0, 0, 999, 9000.0)))
    assert pace.longest_wait_s == 30


def test_quick_steps_have_the_wait_that_the_settings_say():
    pace = WorkerPace(make_config(batch_size_per_worker=128))
    assert waits(pace, *((0, 0.1 * step) for step in range(5)))[-1] == 128 / 20
    assert pace.longest_update_s == 128 / 20


def test_who_knows_better_says_what_a_step_takes():
    pace = WorkerPace(make_config(longest_step_seconds=7.5))
    assert waits(pace, *((0, 64 * step) for step in range(3))) == [FIRST_UPDATE_S, 7.5, 7.5]


def test_an_update_may_also_take_the_grace_period():
    rounds = {"mode": "sync-ps", "backup_workers": 1, "longest_step_seconds": 7.5}
    assert WorkerPace(make_config(**rounds)).longest_update_s == 7.5
    assert WorkerPace(make_config(**rounds, grace_seconds=100)).longest_update_s == 107.5


def test_a_step_that_another_thread_measures_meanwhile_does_not_shorten_the_wait_for_the_first_update():
    def longest_update_seconds(step_s):
        for time in (10, 20):  # what the other thread does
            pace.add(applied((0, 1, 0, 0, 100, time)))
        return step_s

    pace = WorkerPace(SimpleNamespace(longest_update_seconds=longest_update_seconds))
    assert pace.longest_wait_s == FIRST_UPDATE_S
