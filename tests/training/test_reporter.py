"""A progress row has what the leader knows at that time."""

import json

import numpy as np
import pytest

from ps_cluster.runs.result_rows import ProgressRow, WorkerRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.training.reporter import Reporter
from tests.helpers.progress import WALL, Machine, applied, make_config, make_progress, poll


@pytest.fixture
def reporter_of(tmp_path):
    """reporter_of(progress): its reporter, which writes nothing until it is asked to."""
    return lambda progress, **named: Reporter(make_config(), RunDir(tmp_path), progress, **named)


def test_a_row_reports_only_what_no_row_has_reported(reporter_of):
    progress = make_progress()
    reporter = reporter_of(progress)
    progress.note_scheduled(np.arange(4))
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 1.0)))
    row = reporter.take_row("training")
    assert (row.applied, row.scheduled, row.total, row.examples) == (2, 4, 4, 20)
    assert (row.loss, row.accuracy, row.error, row.epoch) == (1.5, 0.5, None, pytest.approx(0.2))
    assert row.workers == [WorkerRow(index=0, pid=7, updates=2, examples=20)]
    assert reporter.take_row("training").loss is None
    poll(progress, applied((2, 3, 2, 0, 7, 1.0)), dropped=6)
    row = reporter.take_row("training")
    assert (row.staleness_mean, row.staleness.sum, row.dropped) == (2, 2, 6)


@pytest.mark.parametrize(
    ("metric", "sum_of_examples", "reported"),
    [
        ("accuracy", 5, (0.5, None)),
        ("accuracy", 10.001, (1, None)),
        ("error", 5, (None, 0.5)),
        ("error", 15, (None, 1.5)),
    ],
)
def test_the_metric_is_in_the_field_of_the_objective_and_no_share_is_above_1(
    reporter_of, metric, sum_of_examples, reported
):
    progress = make_progress()
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), metric=sum_of_examples))
    row = reporter_of(progress, metric=metric).take_row("training")
    assert (row.accuracy, row.error) == reported


def test_a_row_has_nothing_where_a_mean_is_no_number(reporter_of):
    progress = make_progress()
    reporter = reporter_of(progress)
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), loss=np.nan))
    row = reporter.take_row("training")
    assert row.loss is None and row.diverged is True and row.accuracy == 0.5
    assert reporter.take_row("training").diverged is False


def test_a_row_names_who_is_at_each_open_dispatch(reporter_of):
    progress = make_progress(steps=9)
    reporter = reporter_of(progress)
    for first in (0, 3, 6):
        progress.note_scheduled(np.arange(first, first + 3))
    assert reporter.take_row("training").dispatches == [None, None, None]
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (3, 2, 0, 1, 8, 1.0), (1, 3, 0, 0, 7, 1.0)))
    assert reporter.take_row("training").dispatches == [7, 8, None]
    poll(progress, applied((2, 4, 0, 0, 7, 2.0), (4, 5, 0, 2, 9, 2.0)))
    assert reporter.take_row("training").dispatches == [9, None], "done, taken over from one that died, not begun"


def test_a_dispatch_of_rounds_is_nobodys(reporter_of):
    progress = make_progress(mode="sync-ps")
    progress.note_scheduled(np.arange(2))
    assert reporter_of(progress).take_row("training").dispatches == []


def test_a_row_tells_when_it_is_in_training_on_the_machine_and_in_whose_life(reporter_of):
    machine = Machine()
    progress = make_progress(machine=machine)
    progress.clock.start()
    machine.now = 3.0
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 2.5)))
    row = reporter_of(progress, life="12@345").take_row("training")
    assert (row.time, row.monotonic, row.life, row.train_seconds) == (WALL + 3, 53, "12@345", 3)
    assert row.times == TrainingTimes(seconds=3, first_update=1, last_update=2.5, resumed_update=1, stood=((1, 2.5),))
    assert ProgressRow.model_validate(json.loads(row.model_dump_json())) == row
    assert reporter_of(make_progress()).take_row("training").life is None


def test_a_row_tells_the_present_speed_and_how_long_to_wait_for_an_update(reporter_of):
    machine = Machine()
    progress = make_progress(machine=machine, longest_step_seconds=7.5)
    for step in range(2):
        machine.now += 2
        poll(progress, applied((step, step + 1, 0, 0, 7, machine.now)))
    row = reporter_of(progress).take_row("training")
    assert (row.examples_per_second, row.longest_wait_seconds) == (5, 7.5)
