import json

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import RunFailed
from ps_cluster.runs.checkpoints import ProgressState
from ps_cluster.runs.result_rows import WorkerRow
from ps_cluster.server.store import Ledgers
from ps_cluster.training.run_progress import RunProgress
from tests.helpers.progress import NO_UPDATE, applied, counts_of, make_progress, poll


def test_an_update_counts_when_its_last_shard_is_applied_and_is_as_stale_as_its_stalest():
    progress = make_progress(steps=2, ps=2)
    progress.note_scheduled(np.array([0, 1]))
    poll(progress, applied((0, 1, 0, 0, 7, 5.0), (1, 2, 1, 1, 8, 6.0)), applied((0, 1, 3, 0, 7, 9.0)))
    assert progress.applied == 1 and progress.outstanding == 1 and not progress.completed
    poll(progress, NO_UPDATE, applied((1, 2, 0, 1, 8, 6.5)))
    assert progress.completed
    assert progress.tally.staleness == {1: 1, 3: 1}


def test_steps_applied_out_of_order_are_counted_once_and_hold_the_window_where_one_is_open():
    progress = make_progress()
    progress.note_scheduled(np.arange(4))
    window = progress.end_of_window
    poll(progress, applied((1, 1, 0, 1, 8, 1.0), (2, 2, 1, 0, 7, 2.0), (3, 3, 0, 1, 8, 3.0)))
    assert progress.end_of_window == window and progress.applied == 3
    poll(progress, applied((0, 4, 0, 0, 7, 4.0)))
    assert progress.end_of_window == window + 4 and progress.applied == 4 and progress.examples == 40
    assert progress.tally.workers() == [
        WorkerRow(index=0, pid=7, updates=2, examples=20),
        WorkerRow(index=1, pid=8, updates=2, examples=20),
    ]


def test_rows_that_were_lost_on_their_way_fail_the_run():
    progress = make_progress()
    with pytest.raises(RunFailed, match=r"accepted \[3\] gradients, but their ledgers have \[1\] rows"):
        progress.update(Ledgers([applied((0, 1, 0, 0, 7, 1.0))], counts_of(3)))


@pytest.mark.parametrize(
    ("every", "batch", "nexts"),
    [
        (0.25, 8, [4, 7, 10, 13, 16, 19, 20]),  # 100 examples: whole quarters are over after 25, 50, 75, … of them
        (1.0, 10, [10, 20]),
        (0.001, 8, list(range(1, 21))),
        (None, 8, [20]),
    ],
)
def test_the_update_with_which_whole_epochs_are_over_is_known(every, batch, nexts):
    settings = {"training.batch_size_per_worker": batch, "cluster.workers": 1, "checkpoints.every_epochs": every}
    config = build_config(overrides={"training.steps": 20} | settings)

    class Progress(RunProgress):
        applied = 0

    progress, found = Progress(config, 100), []
    for _ in nexts:
        Progress.applied = progress.next_checkpoint_at
        found.append(Progress.applied)
    assert found == nexts


def test_what_a_checkpoint_holds_back_is_handed_out_in_dispatches_that_end_with_its_epochs():
    settings = {"training.batch_size_per_worker": 8, "checkpoints.every_epochs": 0.5, "training.steps": 20}
    progress = RunProgress(build_config(overrides=settings | {"cluster.workers": 1}), 100)
    window = progress.end_of_window
    assert progress.end_of_dispatch(0, 64) == 20
    progress.held_at = progress.next_checkpoint_at
    assert (progress.held_at, progress.end_of_window) == (7, 7), "50 of 100 examples, 8 at once"
    assert [progress.end_of_dispatch(begin, 4) for begin in (0, 4, 7, 11)] == [4, 7, 11, 13]
    progress.held_at = 13
    assert progress.end_of_window == 13
    progress.held_at = None
    assert progress.end_of_window == window


def test_updates_of_rounds_count_when_their_last_gradient_is_there_and_late_ones_hold_nothing():
    progress = make_progress(steps=2, mode="sync-ps", backup_workers=1)
    progress.note_scheduled(np.arange(2))
    window = progress.end_of_window
    poll(
        progress, applied((0, 1, 0, 0, 7, 1.0), (2, 1, 0, 2, 9, 2.0), (3, 2, 0, 0, 7, 3.0)), version=1
    )  # 1 comes too late
    assert (progress.applied, progress.outstanding, progress.end_of_window) == (1, 1, window + 4)
    poll(progress, applied((4, 2, 0, 1, 8, 4.0)), version=2)
    assert progress.completed and progress.end_of_window == window + 6
    assert (progress.scheduled_updates.count, progress.outstanding, progress.tally.gradients) == (2, 0, 4)


def resumed(progress, **settings):
    """A RunProgress that goes on from a checkpoint of `progress`, taken right now."""
    arrays = {"counts": progress.counts, "waiting": progress.waiting}
    state = ProgressState.model_validate(json.loads(progress.state.model_dump_json()))
    following = make_progress(progress.total, ps=len(progress.positions), **settings)
    following.resume(arrays, state)
    return following


def test_a_resumed_run_hands_out_just_the_steps_that_are_missing():
    before = make_progress(steps=5)
    before.note_scheduled(np.arange(4))
    poll(before, applied((0, 1, 0, 0, 7, 1.0), (2, 2, 0, 0, 7, 2.0)))
    progress = resumed(before)
    assert progress.missing_steps.tolist() == [1, 3] and progress.next_step == 4
    assert progress.applied == 2 and progress.outstanding == 0 and progress.scheduled_updates.count == 2
    progress.note_scheduled(np.array([1, 3, 4]))
    poll(progress, applied((4, 3, 0, 0, 7, 3.0), (1, 4, 0, 0, 7, 4.0), (3, 5, 0, 0, 7, 5.0)))
    assert progress.completed and progress.outstanding == 0
    assert progress.tally.workers() == [WorkerRow(index=0, pid=7, updates=5, examples=50)]


def test_a_step_that_one_shard_had_at_a_checkpoint_counts_when_the_other_one_has_it():
    before = make_progress(steps=2, ps=2)
    before.note_scheduled(np.arange(2))
    poll(before, applied((0, 1, 0, 0, 7, 1.0), (1, 2, 4, 0, 7, 2.0)), applied((0, 1, 0, 0, 7, 1.0)))
    progress = resumed(before)
    assert progress.missing_steps.tolist() == [1] and progress.positions == [2, 1]
    progress.note_scheduled(np.array([1]))
    poll(progress, NO_UPDATE, applied((1, 2, 0, 0, 9, 9.0)))
    assert progress.completed and progress.tally.staleness == {0: 1, 4: 1}
    assert progress.mixed == 1, "pushed by one process before it and by another after it"


def test_a_resumed_run_of_rounds_goes_on_behind_its_last_update():
    settings = {"mode": "sync-ps", "backup_workers": 1}
    before = make_progress(steps=4, **settings)
    before.note_scheduled(np.arange(3))
    rows = applied((0, 1, 0, 0, 7, 1.0), (2, 1, 0, 2, 9, 1.0), (3, 2, 0, 0, 7, 2.0))
    poll(before, rows, version=1)  # round 1 is half full
    progress = resumed(before, **settings)
    assert (progress.applied, progress.outstanding, progress.scheduled_updates.count) == (1, 0, 1)
    progress.note_scheduled(np.arange(1, 4))
    rows = applied((4, 2, 0, 1, 8, 3.0), *((step, step // 3 + 1, 0, 0, 7, 4.0) for step in (6, 8, 9, 10)))
    poll(progress, rows, version=4)
    assert progress.completed and progress.tally.gradients == 8


def test_an_update_of_rounds_with_a_grace_period_has_as_many_gradients_as_came_in_it():
    progress = make_progress(steps=2, mode="sync-ps", backup_workers=1, grace_seconds=1)
    progress.note_scheduled(np.arange(2))
    window = progress.end_of_window
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (2, 1, 0, 2, 9, 2.0)), version=0)
    assert (progress.applied, progress.outstanding) == (0, 2), "the round may get another one"
    poll(progress, applied((1, 1, 0, 1, 8, 3.0), (3, 2, 0, 0, 7, 3.0), (4, 2, 0, 1, 8, 3.0)), version=1)
    assert (progress.applied, progress.end_of_window) == (1, window + 5)
    poll(progress, NO_UPDATE, version=2)
    assert progress.completed and progress.end_of_window == window + 6, "without a new row too"
    assert progress.tally.gradients == 5
