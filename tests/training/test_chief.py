"""What the chief hands out, and in which order, against a dispatcher that only notes it."""

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.training.async_trainer import _Chief
from ps_cluster.training.step_set import StepSet

WINDOW = 2**16


class Progress:
    """What `_Chief._steps` asks of a RunProgress."""

    def __init__(self, missing, following, total):
        self.missing_steps, self.next_step, self.total = np.array(missing, np.int64), following, total
        self.done = StepSet(0)
        self.done.add(np.setdiff1d(np.arange(following), self.missing_steps))

    @property
    def end_of_window(self):
        return self.done.first_missing + WINDOW

    def scheduled(self, steps): ...

    def updates_per_second(self):
        return 0.0


class Session:
    def __init__(self, progress):
        self.progress = progress


class Dispatcher:
    def __init__(self):
        self.handed_out = []

    def schedule(self, function, args):
        self.handed_out.append(args[0].numpy().tolist())


@pytest.fixture
def chief(monkeypatch):
    """chief(missing, following, total) → (its plan, what it handed out, its progress)."""
    from ps_cluster.training import async_trainer

    monkeypatch.setattr(async_trainer, "steps_function", lambda *_: None)

    def make(missing, following, total):
        progress, dispatcher = Progress(missing, following, total), Dispatcher()
        config = build_config(overrides={"cluster.steps_per_dispatch": 4})
        made = _Chief(config, Session(progress), dispatcher, None, None)
        return made._plan, dispatcher.handed_out, progress

    return make


def test_steps_that_were_under_way_come_first_and_apart_from_new_ones(chief):
    plan, handed_out, _ = chief([3, 5], 8, 13)
    assert list(plan) == [True] * 3 and handed_out == [[3, 5], [8, 9, 10, 11], [12]]


def test_a_window_that_a_missing_step_holds_up_is_opened_by_that_step(chief):
    plan, handed_out, progress = chief([100], 100 + WINDOW, 100 + WINDOW + 8)
    assert next(plan) and handed_out == [[100]]
    assert not next(plan), "no room while it is open"
    progress.done.add(np.array([100]))
    assert next(plan) and handed_out[1:] == [[100 + WINDOW, 101 + WINDOW, 102 + WINDOW, 103 + WINDOW]]
