"""The seconds of a training, whatever is done to the machine's clock and however often its leader dies."""

import json

import numpy as np
import pytest

from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.runs.times import TrainingClock, TrainingTimes

HOUR = 3600.0


def times(*expected):
    return pytest.approx(np.array(expected), rel=0, abs=1e-5)


class Machine:
    """A clock that is never set, and one that is set now and then."""

    def __init__(self):
        self.monotonic, self.wall = 500.0, 1_800_000_000.0

    def sleep(self, seconds):
        self.monotonic += seconds
        self.wall += seconds

    def set_clock(self, by):
        self.wall += by

    def clock(self):
        return TrainingClock(monotonic=lambda: self.monotonic, wall=lambda: self.wall)


@pytest.fixture
def machine():
    return Machine()


def update(machine, clock, *ages):
    """Record updates that were applied `ages` seconds ago, by the present clock of the machine."""
    clock.poll()
    seconds = clock.seconds_at(clock.without_clock_jumps(machine.wall - np.array(ages or [0.0])))
    clock.note_updates(seconds)
    return seconds.tolist()


def die(machine, clock, last_update_of_state, *, waits=0.0, same_life=True):
    """Let the leader of `clock` die; return the clock of the next leader, which starts `waits` seconds later."""
    row = ProgressRow(phase="training", times=clock.times, monotonic=clock.monotonic).model_dump_json()
    machine.sleep(waits)
    following = machine.clock()
    row = ProgressRow.model_validate(json.loads(row))
    since = row.monotonic if same_life else None
    following.restart(row.times, last_update_of_state, since=since)
    return following


def test_seconds_count_from_the_first_step_on(machine):
    clock = machine.clock()
    machine.sleep(40)
    assert clock.seconds == 0 and clock.times == TrainingTimes()
    clock.start()
    machine.sleep(2)
    assert update(machine, clock, 1.5, 0.5) == [0.5, 1.5]
    machine.sleep(3)
    assert clock.times == TrainingTimes(
        seconds=5, first_update=0.5, last_update=1.5, resumed_update=0.5, stood=((0.5, 1.5),)
    )


@pytest.mark.parametrize("by", [-HOUR, HOUR, -2.0, 2.0])
def test_a_clock_that_is_set_while_training_changes_no_time(machine, by):
    clock, still = machine.clock(), Machine()
    unset = still.clock()
    clock.start()
    unset.start()
    for each, own in ((machine, clock), (still, unset)):
        each.sleep(10)
        update(each, own)
        each.sleep(1)
    before = machine.wall - np.array([0.9, 0.1])
    machine.set_clock(by)
    for each in (machine, still):
        each.sleep(0.2)
    after = machine.wall - np.array([0.1, 0.0])
    unix = np.append(before, after)
    clock.poll()
    assert clock.without_clock_jumps(unix) == times(*(still.wall - np.array([1.1, 0.3, 0.1, 0.0])))
    assert clock.seconds_at(clock.without_clock_jumps(unix)) == times(10.1, 10.9, 11.1, 11.2)
    for each, own in ((machine, clock), (still, unset)):
        each.sleep(20)
        update(each, own)
    assert clock.seconds == pytest.approx(31.2)
    own, expected = (vars(each.times) | {"stood": np.array(each.times.stood)} for each in (clock, unset))
    assert {name: pytest.approx(value, rel=0, abs=1e-5) for name, value in expected.items()} == own


def test_a_clock_that_is_set_again_and_again_changes_no_time(machine):
    clock, still = machine.clock(), Machine()
    clock.start()
    for by in (HOUR, -HOUR, -HOUR, 30.0, -7 * HOUR, 24 * HOUR, -24 * HOUR, 5.0):
        early = machine.wall
        machine.set_clock(by)
        for each in (machine, still):
            each.sleep(0.4)
        clock.poll()
        assert clock.without_clock_jumps(np.array([early, machine.wall])) == times(still.wall - 0.4, still.wall)


@pytest.mark.parametrize("by", [5.0, 0.6])
def test_long_after_a_clock_was_set_a_time_of_a_slow_step_is_what_it_was(machine, by):
    clock, still = machine.clock(), Machine()
    clock.start()
    machine.set_clock(by)
    for _ in range(1000):
        for each in (machine, still):
            each.sleep(1)
        clock.poll()
    assert clock.without_clock_jumps(np.array([machine.wall - 10])) == times(still.wall - 10)


def test_a_time_from_long_before_the_clock_was_set_back_by_less_is_what_it_was(machine):
    clock = machine.clock()
    clock.start()
    machine.sleep(100)
    clock.poll()
    asked = machine.wall - 20
    machine.set_clock(-10.0)
    clock.poll()
    assert clock.without_clock_jumps(np.array([asked])).tolist() == [asked]


def test_a_clock_that_drifts_is_followed_and_leaves_times_as_they_are_to_the_bit(machine):
    clock, unix = machine.clock(), machine.wall + np.random.default_rng(0).uniform(-5, 0, 1000)
    clock.start()
    for _ in range(100):
        machine.sleep(1)
        machine.set_clock(0.01)
        assert update(machine, clock) == times(clock.seconds)
    assert (clock.without_clock_jumps(unix) == unix).all()


def test_a_time_that_nobody_took_stays_none(machine):
    clock = machine.clock()
    machine.set_clock(-HOUR)
    clock.poll()
    assert clock.without_clock_jumps(np.zeros(2)).tolist() == [0, 0]


def test_without_two_updates_there_is_no_goodput(machine):
    clock = machine.clock()
    clock.start()
    assert clock.times.goodput is None
    machine.sleep(1)
    update(machine, clock)
    assert clock.times.goodput is None
    machine.sleep(1)
    update(machine, clock)
    assert clock.times.goodput == 1


def trained(machine, seconds):
    """Return the clock of a leader that had an update each second, the first one at the start."""
    clock = machine.clock()
    clock.start()
    train(machine, clock, seconds)
    return clock


def train(machine, clock, seconds):
    update(machine, clock)
    for _ in range(seconds):
        machine.sleep(1)
        update(machine, clock)


# Each leader: when the last update of the state that it resumes was applied, seconds from the death of the leader before
# it to its start, seconds until its first update, and seconds with an update each; None for a leader without updates.
# Then the seconds that were rolled back and interrupted, and when the last update was applied.
LIVES = {
    "what came after the snapshot is rolled back and the wait is an interruption": (
        [(None, 0, 0, 100), (90.0, 15, 5, 80)], (10, 20, 200),
    ),
    "before the first snapshot all updates are rolled back": ([(None, 0, 0, 30), (None, 10, 0, 60)], (30, 10, 100)),
    "a leader without an update takes nothing more back": (
        [(None, 0, 0, 100), (90.0, 5, 4, None), (90.0, 6, 5, 10)], (10, 20, 130),
    ),
    "two leaders that die without a snapshot between them give up the updates of both": (
        [(None, 0, 0, 100), (90.0, 10, 0, 40), (90.0, 10, 0, 40)], (50, 20, 200),
    ),
    "an older snapshot gives up what stood until the newer one, which is damaged": (
        [(None, 0, 0, 100), (90.0, 10, 0, 40), (60.0, 10, 0, 40)], (80, 20, 200),
    ),
}  # fmt: skip


@pytest.mark.parametrize("lives", LIVES)
def test_lost_time_is_what_was_rolled_back_and_what_was_interrupted(machine, lives):
    clock, (leaders, (rolled_back, interrupted, last_update)) = machine.clock(), LIVES[lives]
    for number, (last_update_of_state, waits, idle, seconds) in enumerate(leaders):
        clock = die(machine, clock, last_update_of_state, waits=waits) if number else clock
        clock.start()
        machine.sleep(idle)
        if seconds is not None:
            train(machine, clock, seconds)
    times = clock.times
    assert (times.rolled_back, times.interrupted, times.last_update) == (rolled_back, interrupted, last_update)
    assert times.goodput == pytest.approx(1 - (rolled_back + interrupted) / last_update)


def test_in_a_later_life_nobody_has_waited_in_between(machine):
    first = trained(machine, 100)
    second = die(machine, first, 100.0, waits=5 * HOUR, same_life=False)
    machine.sleep(30)
    assert second.seconds == 100, "connecting and building"
    second.start()
    machine.sleep(2)
    train(machine, second, 98)
    assert (second.times.rolled_back, second.times.interrupted, second.times.last_update) == (0, 2, 200)
    assert second.times.goodput == pytest.approx(1 - 2 / 200)


def test_a_later_life_on_another_machine_whose_clock_began_anew_goes_on_as_well(machine):
    first = trained(machine, 100)
    row = first.times, first.monotonic
    machine.monotonic = 3.0
    second = machine.clock()
    second.restart(row[0], 100.0, since=row[1])
    second.start()
    machine.sleep(1)
    assert second.seconds == 101


def test_while_there_was_no_update_a_start_again_waits_for_the_first_step(machine):
    first = machine.clock()
    first.start()
    machine.sleep(7)
    second = die(machine, first, None, waits=20)
    assert second.seconds == 7
    second.start()
    machine.sleep(1)
    train(machine, second, 10)
    times = second.times
    assert (times.first_update, times.last_update, times.goodput) == (8, 18, 1)


def test_a_clock_that_was_set_before_a_start_again_changes_nothing_either(machine):
    first = trained(machine, 10)
    machine.set_clock(-HOUR)
    second = die(machine, first, 10.0, waits=5)
    second.start()
    train(machine, second, 10)
    assert (second.times.rolled_back, second.times.interrupted, second.times.last_update) == (0, 5, 25)
