"""When handing out is paused for a state in which all shards have the same steps, tested with a clock alone."""

import pytest

from ps_cluster.training.aligned_states import ALIGNED_STATE_EVERY_S, LONGEST_PAUSE_S, PAUSE_FACTOR, AlignedStates

FIRST_S = 2.0  # the interval of snapshots


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Watched:
    """`at(second, applied, outstanding)` looks at that second, and returns whether to save a snapshot."""

    def __init__(self, has_aligned=False):
        self._clock = Clock()
        self.states = AlignedStates(has_aligned=has_aligned, snapshot_every_s=FIRST_S, clock=self._clock)

    def at(self, second, applied=1, outstanding=1, longest_update_s=0.0):
        self._clock.now = second
        return self.states.poll(applied, outstanding, longest_update_s)


@pytest.mark.parametrize(("has_aligned", "begins"), [(False, FIRST_S), (True, ALIGNED_STATE_EVERY_S)])
def test_a_pause_begins_when_a_snapshot_is_due_or_a_minute_after_an_aligned_state(has_aligned, begins):
    watched = Watched(has_aligned)
    assert not watched.at(begins - 0.1) and not watched.states.is_paused
    assert not watched.at(begins) and watched.states.is_paused, "a step is under way"
    assert watched.at(begins + 0.1, outstanding=0)
    watched.states.note_saved(True, 1)
    assert not watched.states.is_paused
    assert not watched.at(begins + ALIGNED_STATE_EVERY_S) and not watched.states.is_paused


def test_there_is_no_pause_before_the_first_update():
    watched = Watched()
    assert not watched.at(100, applied=0, outstanding=0) and not watched.states.is_paused
    assert not watched.at(101) and not watched.states.is_paused


def test_a_pause_goes_on_while_updates_are_applied_and_ends_when_a_step_takes_longer_than_an_update():
    watched, longest_s = Watched(), LONGEST_PAUSE_S + 5
    for second in range(int(FIRST_S), 40):
        watched.at(second, applied=second, longest_update_s=longest_s)
        assert watched.states.is_paused
    assert not watched.at(40, applied=39, longest_update_s=longest_s)
    assert not watched.states.is_paused
    again = 40 + PAUSE_FACTOR * (40 - FIRST_S)
    watched.at(again - 1, applied=50)
    assert not watched.states.is_paused, "a long pause is followed by a long time without one"
    watched.at(again, applied=50)
    assert watched.states.is_paused


def test_a_pause_whose_snapshot_is_refused_or_is_not_aligned_is_given_up():
    watched = Watched()
    assert watched.at(FIRST_S, outstanding=0)
    watched.states.note_saved(False, 1)
    assert watched.states.is_paused
    watched.states.give_up()
    assert not watched.states.is_paused
