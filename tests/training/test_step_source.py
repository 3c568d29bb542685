"""Which steps are handed out, in which order, and how many in a dispatch."""

import math
from itertools import islice

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.config.dispatch_size import dispatch_size
from ps_cluster.runs.step_set import StepSet
from ps_cluster.training.modes.sync_ps import Rounds
from ps_cluster.training.recent_speed import RecentSpeed
from ps_cluster.training.step_source import AsynchronousSteps, DispatchGraphs

WINDOW = 2**16


class Progress:
    """Stand in for a RunProgress: it has only what `AsynchronousSteps` reads."""

    def __init__(self, missing, following, total):
        self.missing_steps, self.next_step, self.total = np.array(missing, np.int64), following, total
        self.done = StepSet(0)
        self.done.add(np.setdiff1d(np.arange(following), self.missing_steps))
        self.held_at = math.inf
        self.speed = RecentSpeed()

    @property
    def end_of_window(self):
        return min(self.held_at, self.done.first_missing + WINDOW)

    def end_of_dispatch(self, begin, updates):
        return min(self.total, begin + updates)

    def note_scheduled(self, steps): ...


@pytest.fixture
def steps():
    """steps(missing, following, total) → (the dispatches, what was handed out, the progress)."""

    def make(missing, following, total):
        progress, handed_out = Progress(missing, following, total), []
        config = build_config(overrides={"cluster.steps_per_dispatch": 4})
        work = AsynchronousSteps(
            config, progress, DispatchGraphs(lambda repeats: None), lambda graph, what: handed_out.append(what.tolist())
        )
        return work.hand_out(), handed_out, progress

    return make


def test_steps_that_were_under_way_come_first_and_apart_from_new_ones(steps):
    plan, handed_out, _ = steps([3, 5], 8, 13)
    assert list(plan) == [True] * 3 and handed_out == [[3, 5], [8, 9, 10, 11], [12]]


def test_a_window_that_a_missing_step_holds_up_is_opened_by_that_step(steps):
    plan, handed_out, progress = steps([100], 100 + WINDOW, 100 + WINDOW + 8)
    assert next(plan) and handed_out == [[100]]
    assert not next(plan), "no room while it is open"
    progress.done.add(np.array([100]))
    assert next(plan) and handed_out[1:] == [[100 + WINDOW, 101 + WINDOW, 102 + WINDOW, 103 + WINDOW]]


def test_steps_before_a_checkpoint_are_handed_out_without_the_steps_after_it_that_were_under_way_too(steps):
    plan, handed_out, progress = steps([388, 389, 390, 391], 392, 400)
    progress.held_at = 390
    assert next(plan) and handed_out == [[388, 389]]
    assert not next(plan), "training is held until the checkpoint is written"
    progress.held_at = 394
    assert list(islice(plan, 2)) == [True] * 2 and handed_out[1:] == [[390, 391], [392, 393]]
    assert not next(plan)
    progress.held_at = 400
    assert list(plan) == [True] * 2 and handed_out[3:] == [[394, 395, 396, 397], [398, 399]]


def test_rounds_before_a_checkpoint_are_handed_out_to_every_worker_and_the_rounds_after_it_once_it_is_written():
    progress, handed_out = Progress([], 0, 12), []
    progress.applied, progress.held_at = 0, 3 * 8  # step ids of 3 workers
    values = {"mode.name": "sync-ps", "cluster.workers": 3, "cluster.steps_per_dispatch": 4}
    graphs = DispatchGraphs(lambda repeats: None)
    rounds = Rounds(build_config(overrides=values), progress, graphs, lambda graph, end: handed_out.append(end))
    plan = rounds.hand_out()
    assert list(islice(plan, 3)) == [True, True, False] and handed_out == [4] * 3 + [8] * 3
    progress.held_at = 3 * 12
    assert list(plan) == [True] and handed_out[6:] == [12] * 3 and rounds.ends


@pytest.mark.parametrize(
    ("per_second", "size"), [(0.0, 4), (2.5, 4), (29.0, 14), (1000.0, 64)], ids=["unknown", "slow", "fast", "empty"]
)
def test_a_dispatch_takes_about_half_a_second(per_second, size):
    assert dispatch_size("auto", workers=3, per_second=per_second, left=math.inf) == size


def test_dispatches_grow_shorter_towards_the_end_and_never_empty():
    left, sizes = 40, []
    while left:
        sizes.append(dispatch_size("auto", workers=3, per_second=29.0, left=left))
        left -= sizes[-1]
    assert sizes == [14, 13, 6, 3, 2, 1, 1]


def test_a_number_that_was_asked_for_is_kept():
    assert dispatch_size(7, workers=3, per_second=29.0, left=3) == 7


def test_many_workers_get_longer_dispatches_so_that_the_chief_keeps_up():
    sizes = [dispatch_size("auto", workers=n, per_second=29.0, left=math.inf) for n in (100, 200, 10_000)]
    assert sizes == [14, 29, 64]
