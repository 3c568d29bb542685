import json

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import RunFailed
from ps_cluster.runs.checkpoints import ProgressState
from ps_cluster.runs.ledger import COUNTS
from ps_cluster.runs.result_rows import Gradients, ProgressRow, Updates, WorkerRow
from ps_cluster.runs.times import TrainingClock, TrainingTimes
from ps_cluster.server.store import Ledgers
from ps_cluster.training.run_progress import FIRST_UPDATE_S, RATE_WINDOW_S, RunProgress
from tests.helpers.ledgers import rows_of

WALL = 1_000_000.0


class Machine:
    """Its clock, which shows unix time and counts seconds since it was switched on."""

    def __init__(self):
        self.now = 0.0

    def clock(self):
        return TrainingClock(monotonic=lambda: 50 + self.now, wall=lambda: WALL + self.now)


@pytest.fixture
def machine():
    return Machine()


OTHERS = {
    "mode": "mode.name",
    "backup_workers": "mode.backup_workers",
    "grace_seconds": "mode.grace_seconds",
    "longest_step_seconds": "cluster.longest_step_seconds",
}


def make_progress(steps=4, ps=1, machine=None, life=None, **settings):
    overrides = {"training.steps": steps, "training.batch_size_per_worker": 10, "cluster.parameter_servers": ps}
    config = build_config(
        overrides=overrides | {OTHERS.get(name, f"training.{name}"): value for name, value in settings.items()}
    )
    return RunProgress(config, train_examples=100, clock=(machine or Machine()).clock(), life=life)


def applied(*updates, **columns):
    """A row for each update (step, version, staleness, worker, pid, seconds after WALL that it was applied)."""
    names = ("step", "version", "staleness", "worker", "pid", "applied_time")
    known = dict(zip(names, map(list, zip(*updates)))) or {"step": []}
    known["applied_time"] = WALL + np.array(known.get("applied_time", []), float)
    known["loss"] = known.get("version", [])
    return rows_of(**{"steps": known.pop("step")}, **({"examples": 10, "metric": 5} | known | columns))


def counts_of(*accepted, **counts):
    """Those of shards that have accepted so many gradients; `counts`: what else is not 0 on any shard."""
    known = [{"version": own, "accepted": own} | counts for own in accepted]
    return np.array([[own.get(name, 0) for name in COUNTS] for own in known], np.int64).reshape(-1, len(COUNTS))


def poll(progress, *new, **counts):
    """Takes in a look that found the rows `new` of each shard."""
    accepted = [position + len(rows) for position, rows in zip(progress.positions, new)]
    progress.update(progress.without_clock_jumps(Ledgers(list(new), counts_of(*accepted, **counts))))


NONE = applied()


def test_an_update_counts_when_its_last_shard_is_applied_and_is_as_stale_as_its_stalest():
    progress = make_progress(steps=2, ps=2)
    progress.note_scheduled(np.array([0, 1]))
    poll(progress, applied((0, 1, 0, 0, 7, 5.0), (1, 2, 1, 1, 8, 6.0)), applied((0, 1, 3, 0, 7, 9.0)))
    assert progress.applied == 1 and progress.outstanding == 1 and not progress.completed
    poll(progress, NONE, applied((1, 2, 0, 1, 8, 6.5)))
    assert progress.completed
    assert progress.result().staleness.histogram == {"1": 1, "3": 1}


def test_steps_applied_out_of_order_are_counted_once_and_hold_the_window_where_one_is_open():
    progress = make_progress()
    progress.note_scheduled(np.arange(4))
    window = progress.end_of_window
    poll(progress, applied((1, 1, 0, 1, 8, 1.0), (2, 2, 1, 0, 7, 2.0), (3, 3, 0, 1, 8, 3.0)))
    assert progress.end_of_window == window and progress.applied == 3
    poll(progress, applied((0, 4, 0, 0, 7, 4.0)))
    assert progress.end_of_window == window + 4 and progress.applied == 4 and progress.examples == 40
    assert progress.take_row("training").workers == [
        WorkerRow(index=0, pid=7, updates=2, examples=20),
        WorkerRow(index=1, pid=8, updates=2, examples=20),
    ]


def test_rows_that_were_lost_on_their_way_fail_the_run():
    progress = make_progress()
    with pytest.raises(RunFailed, match=r"accepted \[3\] gradients, but their ledgers have \[1\] rows"):
        progress.update(Ledgers([applied((0, 1, 0, 0, 7, 1.0))], counts_of(3)))


def test_a_row_reports_only_what_no_row_has_reported():
    progress = make_progress()
    progress.note_scheduled(np.arange(4))
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 1.0)))
    first = progress.take_row("training")
    assert first.loss == 1.5 and first.accuracy == 0.5 and first.epoch == pytest.approx(0.2)
    assert progress.take_row("training").loss is None
    poll(progress, applied((2, 3, 2, 0, 7, 1.0)))
    assert progress.take_row("training").staleness_mean == 2


def test_a_row_has_nothing_where_a_mean_is_no_number():
    progress = make_progress()
    progress.note_scheduled(np.arange(1))
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), loss=np.nan))
    row = progress.take_row("training")
    assert row.loss is None and row.diverged is True and row.accuracy == 0.5
    assert progress.take_row("training").diverged is False


def test_a_training_has_no_loss_if_that_of_every_step_was_no_number_and_there_were_enough_of_them():
    progress = make_progress()
    progress.note_scheduled(np.arange(3))
    assert not progress.has_no_loss(least=1), "nothing is known of it"
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 1.0), loss=np.nan))
    assert progress.has_no_loss(least=2) and not progress.has_no_loss(least=3)
    poll(progress, applied((2, 3, 0, 0, 7, 1.0), loss=1.0))
    assert not progress.has_no_loss(least=1)


def test_a_row_names_who_is_at_each_open_dispatch():
    progress = make_progress(steps=9)
    for first in (0, 3, 6):
        progress.note_scheduled(np.arange(first, first + 3))
    assert progress.take_row("training").dispatches == [None, None, None]
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (3, 2, 0, 1, 8, 1.0), (1, 3, 0, 0, 7, 1.0)))
    assert progress.take_row("training").dispatches == [7, 8, None]
    poll(progress, applied((2, 4, 0, 0, 7, 2.0), (4, 5, 0, 2, 9, 2.0)))
    assert progress.take_row("training").dispatches == [9, None], "done, taken over from one that died, not begun"


def test_a_dispatch_of_rounds_is_nobodys():
    progress = make_progress(mode="sync-ps")
    progress.note_scheduled(np.arange(2))
    assert progress.take_row("training").dispatches == []


def test_a_row_tells_when_it_is_in_training_on_the_machine_and_in_whose_life(machine):
    progress = make_progress(machine=machine, life="12@345")
    progress.clock.start()
    machine.now = 3.0
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 2.5)))
    row = progress.take_row("training")
    assert (row.time, row.monotonic, row.life, row.train_seconds) == (WALL + 3, 53, "12@345", 3)
    assert row.times == TrainingTimes(seconds=3, first_update=1, last_update=2.5, resumed_update=1, stood=((1, 2.5),))
    assert ProgressRow.model_validate(json.loads(row.model_dump_json())) == row
    assert make_progress().take_row("training").life is None


def test_the_rate_is_that_of_the_last_seconds(machine):
    progress = make_progress(steps=100, machine=machine)
    for step in range(20):
        machine.now += 1
        poll(progress, applied((step, step + 1, 0, 0, 7, machine.now)))
    assert progress.updates_per_second() == 1 and progress.take_row("training").examples_per_second == 10
    machine.now += RATE_WINDOW_S - 1
    poll(progress, NONE)
    assert progress.updates_per_second() == pytest.approx(1 / RATE_WINDOW_S)


def test_a_clock_that_is_set_meanwhile_changes_no_time_of_a_row(machine):
    wall, start = [0.0], machine.clock()
    clock = TrainingClock(monotonic=lambda: start.monotonic, wall=lambda: start.unix + wall[0])
    progress = RunProgress(build_config(overrides={"training.steps": 4}), 100, clock)
    machine.now, wall[0] = 2.0, -3600.0
    times = {"entered_time": [WALL + 1, WALL + 2 - 3600], "scheduled_time": 0, "pushed_time": WALL + 0.5}
    rows = applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 2 - 3600), **times)
    given, found = rows.copy(), progress.without_clock_jumps(Ledgers([rows], counts_of(2))).rows[0]
    assert found["applied_time"].tolist() == found["entered_time"].tolist() == [WALL + 1, WALL + 2]
    assert found["pushed_time"].tolist() == [WALL + 0.5] * 2 and not found["scheduled_time"].any()
    assert (rows == given).all(), "what was given stays as it was"


def waits(progress, *times_of_workers, start=0):
    """How long to wait for an update after each time (s after WALL) that a worker's next update was applied."""
    told = []
    for step, (worker, time) in enumerate(times_of_workers, start):
        poll(progress, applied((step, step + 1, 0, worker, 100 + worker, time)))
        told.append(progress.take_row("training").longest_wait_seconds)
    return told


def test_how_long_to_wait_for_an_update_is_learned_from_the_slowest_workers_steps():
    progress = make_progress(steps=100)
    assert progress.take_row("training").longest_wait_seconds == FIRST_UPDATE_S
    assert waits(progress, (0, 70), (1, 75)) == [FIRST_UPDATE_S] * 2, "no step is measured"
    assert waits(progress, (0, 134), (1, 175), (0, 198), start=2) == [3 * 64, 3 * 100, 3 * 100]


def test_steps_that_are_seen_in_one_look_share_its_time():
    progress = make_progress(steps=100)
    waits(progress, (0, 70))
    poll(progress, applied((1, 2, 0, 0, 100, 110.0), (2, 3, 0, 0, 100, 190.0)))
    assert progress.step_seconds == (190 - 70) / 2


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


def test_one_long_pause_teaches_nothing_and_a_new_process_begins_anew():
    progress = make_progress(steps=100)
    waits(progress, *((0, 10 * step) for step in range(5)))
    assert waits(progress, (0, 40 + 5000), start=5) == [30]
    poll(progress, applied((6, 7, 0, 0, 999, 9000.0)))
    assert progress.longest_wait_seconds == 30


def test_quick_steps_have_the_wait_that_the_settings_say():
    progress = make_progress(steps=100, batch_size_per_worker=128)
    assert waits(progress, *((0, 0.1 * step) for step in range(5)))[-1] == 128 / 20
    assert progress.longest_update_seconds == 128 / 20


def test_who_knows_better_says_what_a_step_takes():
    progress = make_progress(steps=100, longest_step_seconds=7.5)
    assert waits(progress, *((0, 64 * step) for step in range(3))) == [FIRST_UPDATE_S, 7.5, 7.5]


def test_an_update_may_also_take_the_grace_period():
    rounds = {"mode": "sync-ps", "backup_workers": 1, "longest_step_seconds": 7.5}
    assert make_progress(**rounds).longest_update_seconds == 7.5
    assert make_progress(**rounds, grace_seconds=100).longest_update_seconds == 107.5


def test_the_result_tells_lost_and_refused_apart():
    progress = make_progress()
    progress.note_scheduled(np.arange(4))
    rows = applied((0, 1, 0, 0, 7, 1.0), (1, 2, 0, 0, 7, 2.0), (2, 3, 0, 0, 7, 3.0))
    poll(progress, rows, refused=2, dropped=5)
    result = progress.result()
    assert result.updates == Updates(scheduled=4, applied=3, lost=1, replays_refused=2, mixed=0)
    assert result.gradients == Gradients(scheduled=4, applied=3, dropped=5, per_update=1)


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
    result = progress.result()
    assert (result.updates.scheduled, result.updates.applied, result.updates.lost) == (2, 2, 0)
    assert result.gradients == Gradients(scheduled=6, applied=4, dropped=0, per_update=2)


def resumed(progress, machine=None, steps=None, **settings):
    """A RunProgress that goes on from a checkpoint of `progress`, taken right now."""
    arrays = {"counts": progress.counts, "waiting": progress.waiting}
    state = ProgressState.model_validate(json.loads(progress.state.model_dump_json()))
    following = make_progress(steps or progress.total, ps=len(progress.positions), machine=machine, **settings)
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
    assert progress.completed and progress.result().updates.lost == 0
    assert progress.result().workers == [WorkerRow(index=0, pid=7, updates=5, examples=50)]


def test_a_step_that_one_shard_had_at_a_checkpoint_counts_when_the_other_one_has_it():
    before = make_progress(steps=2, ps=2)
    before.note_scheduled(np.arange(2))
    poll(before, applied((0, 1, 0, 0, 7, 1.0), (1, 2, 4, 0, 7, 2.0)), applied((0, 1, 0, 0, 7, 1.0)))
    progress = resumed(before)
    assert progress.missing_steps.tolist() == [1] and progress.positions == [2, 1]
    progress.note_scheduled(np.array([1]))
    poll(progress, NONE, applied((1, 2, 0, 0, 9, 9.0)))
    assert progress.completed and progress.result().staleness.max == 4
    assert progress.result().updates.mixed == 1, "pushed by one process before it and by another after it"


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
    assert progress.completed and progress.result().gradients.applied == 8


def test_an_update_of_rounds_with_a_grace_period_has_as_many_gradients_as_came_in_it():
    progress = make_progress(steps=2, mode="sync-ps", backup_workers=1, grace_seconds=1)
    progress.note_scheduled(np.arange(2))
    window = progress.end_of_window
    poll(progress, applied((0, 1, 0, 0, 7, 1.0), (2, 1, 0, 2, 9, 2.0)), version=0)
    assert (progress.applied, progress.outstanding) == (0, 2), "the round may get another one"
    poll(progress, applied((1, 1, 0, 1, 8, 3.0), (3, 2, 0, 0, 7, 3.0), (4, 2, 0, 1, 8, 3.0)), version=1)
    assert (progress.applied, progress.end_of_window) == (1, window + 5)
    poll(progress, NONE, version=2)
    assert progress.completed and progress.end_of_window == window + 6, "without a new row too"
    assert progress.result().gradients.applied == 5


def test_training_ends_with_its_last_update_whatever_is_written_after_it(machine):
    progress = make_progress(machine=machine)
    progress.clock.start()
    progress.note_scheduled(np.arange(3))
    machine.now = 60.0
    poll(progress, applied((0, 1, 0, 0, 7, 2.0), (1, 2, 0, 1, 8, 4.0), (2, 3, 0, 0, 7, 5.0)))
    result = progress.result()
    assert result.train_seconds == 5 and result.goodput == 1 and result.outcome == "stopped"
    assert result.examples_per_second == 10 / 1, "from the first update of the last worker"


def test_a_resumed_run_without_an_update_has_trained_no_longer(machine):
    progress = make_progress(machine=machine)
    before = TrainingTimes(seconds=33.0, first_update=1.0, last_update=30.0, resumed_update=1.0, stood=((1.0, 30.0),))
    progress.clock.restart(before, 30.0)
    progress.clock.start()
    machine.now = 7.0
    poll(progress, NONE)
    assert progress.result().train_seconds == 30 and progress.result().goodput == 1
