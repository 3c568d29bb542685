"""The chief's loop with a store that is not there: what it hands out while a look takes long, and while it rests."""

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.runs.ledger import COUNTS
from ps_cluster.server.shard import NO_END
from ps_cluster.server.store import Ledgers
from ps_cluster.training import chief as chief_module
from ps_cluster.training.chief import LEAST_POLL_S, POLL_S, BackgroundPoller, Chief
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.step_source import DispatchGraphs
from ps_cluster.training.worker_pace import WorkerPace
from tests.helpers.ledgers import rows_of

CONFIG = build_config(overrides={"training.steps": 10_000, "cluster.workers": 1, "cluster.steps_per_dispatch": 2})
STORE = SimpleNamespace(shards=[None], tick=lambda seconds, **_: None)


class Dispatcher:
    def __init__(self):
        self.steps, self.repeated = [], []

    def schedule(self, graph, args):
        (self.repeated if graph == "again" else self.steps).extend(args[0].numpy().tolist())

    def done(self):
        return False


class Session:
    """`poll` is called at each look, and applies by `apply` what was handed out."""

    broken = None
    store, graphs = STORE, DispatchGraphs(lambda repeats: "again" if repeats else "first")

    def __init__(self, dispatcher, poll, config=CONFIG):
        self.progress, self._dispatcher, self._poll = RunProgress(config, 100), dispatcher, poll
        self.progress.speed = SimpleNamespace(updates_per_second=40.0, add=lambda now: None)
        self.saver = SimpleNamespace(is_paused=False, seconds_to_checkpoint=math.inf)

    def start(self):
        pass

    def keep_up(self, phase):
        self._poll()

    def apply(self):
        fresh = self._dispatcher.steps[self.progress.applied :]
        counts = np.zeros([1, len(COUNTS)], np.int64)
        counts[:, :3] = self.progress.applied + len(fresh)
        self.progress.update(Ledgers([rows_of(fresh, worker=0, examples=1)], counts))


def run(poll, config=CONFIG, **options):
    """Return dispatcher, session, and the loop's thread and stop; `look(dispatcher, session)` is called at each look."""
    dispatcher, drain = Dispatcher(), threading.Event()
    drain.for_good = False
    session = Session(dispatcher, lambda: poll(dispatcher, session), config)
    chief = Chief(config, session, dispatcher, **options)
    thread = threading.Thread(target=chief.run, args=[drain], daemon=True)
    thread.start()
    return dispatcher, session, thread, drain


def end(thread, drain):
    drain.set()
    thread.join(20)
    assert not thread.is_alive()


def test_while_a_look_takes_long_steps_are_handed_out_as_fast_as_they_were_done_before():
    handed, more = [], threading.Event()

    def poll(dispatcher, session):
        if not handed:
            handed.append(len(dispatcher.steps))
            while len(dispatcher.steps) < handed[0] + 20:  # half a second's
                if more.wait(0.05):
                    break
            handed.append(len(dispatcher.steps))
        session.apply()

    _, _, thread, drain = run(poll)
    release = threading.Timer(10, more.set)
    release.start()
    while len(handed) < 2:
        thread.join(0.05)
    release.cancel()
    end(thread, drain)
    assert handed[1] >= handed[0] + 20


@pytest.mark.parametrize(
    ("seconds_to_checkpoint", "speed", "waits"),
    [
        (math.inf, 40.0, POLL_S),
        (0.1, 40.0, 0.1),
        (0.001, 400.0, LEAST_POLL_S),
        (0.001, 10.0, 0.1),  # when another update is expected
        (0.001, 0.0, POLL_S),
        (9.0, 40.0, POLL_S),
    ],
)
def test_the_next_look_comes_when_a_checkpoint_is_due_if_that_is_sooner(seconds_to_checkpoint, speed, waits):
    asked = []

    class Drain(threading.Event):
        for_good = False

        def wait(self, seconds):
            asked.append(seconds)
            self.set()

    dispatcher = Dispatcher()
    session = Session(dispatcher, lambda: session.apply())
    session.saver.seconds_to_checkpoint = seconds_to_checkpoint
    session.progress.speed.updates_per_second = speed
    Chief(CONFIG, session, dispatcher).run(Drain())
    assert asked == [waits]


def test_a_tick_counts_the_time_since_the_last_one_but_at_most_a_polling_interval(monkeypatch):
    told, now, pauses = [], [0.0], [0.02, 3.0, 0.1]
    store = SimpleNamespace(shards=[None], tick=lambda seconds, **_: told.append(seconds))
    monkeypatch.setattr(Session, "store", store)

    class Drain(threading.Event):
        for_good = False

        def wait(self, seconds):
            now.append(now[-1] + pauses.pop(0))
            if not pauses:
                self.set()

    dispatcher = Dispatcher()
    session = Session(dispatcher, lambda: session.apply())
    Chief(CONFIG, session, dispatcher, clock=lambda: now[-1]).run(Drain())
    assert told == pytest.approx([0.02, POLL_S, 0.1])


def test_a_tick_tells_how_long_an_update_of_a_healthy_worker_takes(monkeypatch):
    told = []
    store = SimpleNamespace(shards=[None], tick=lambda *_, longest_update_s=None, **__: told.append(longest_update_s))
    monkeypatch.setattr(Session, "store", store)
    monkeypatch.setattr(WorkerPace, "longest_update_s", 77.0)
    _, _, thread, drain = run(lambda dispatcher, session: session.apply())
    while not told:
        thread.join(0.05)
    end(thread, drain)
    assert set(told) == {77.0}


def test_the_steps_of_a_late_dispatch_are_handed_out_once_more_in_a_graph_that_asks_whether_they_are_applied(
    monkeypatch,
):
    monkeypatch.setattr(WorkerPace, "longest_wait_s", 0.0)

    def poll(dispatcher, session):
        if dispatcher.repeated:
            session.apply()

    only_dispatch = CONFIG.with_values({"training.steps": 2})  # which has begun, because there is a worker for it
    dispatcher, session, thread, _ = run(poll, only_dispatch, lost_after_s=0.1)
    thread.join(20)
    assert session.progress.completed
    assert (dispatcher.steps, dispatcher.repeated) == ([0, 1], [0, 1])


@pytest.mark.parametrize("is_paused", [True, False])
def test_nothing_is_handed_out_at_rest(is_paused):
    handed = []

    def poll(dispatcher, session):
        handed.append(len(dispatcher.steps))
        session.apply()
        session.saver.is_paused = is_paused

    _, _, thread, drain = run(poll)
    while len(handed) < 4:
        thread.join(0.05)
    end(thread, drain)
    assert (handed[2] == handed[0]) == is_paused


def test_shards_know_that_no_step_follows_before_a_checkpoint_and_hear_of_more_before_the_next_step(monkeypatch):
    events, over, schedule = [], [], Dispatcher.schedule
    store = SimpleNamespace(shards=[None], tick=lambda seconds, *, handed_out, **_: events.append(handed_out))
    monkeypatch.setattr(Session, "store", store)

    def noted(self, function, args):
        events.append("steps")
        schedule(self, function, args)

    monkeypatch.setattr(Dispatcher, "schedule", noted)

    def poll(dispatcher, session):
        progress = session.progress
        if not over and progress.held_at is None:
            progress.held_at = progress.scheduled_updates.count + 2
            over.append(progress.held_at)
        elif progress.applied == progress.held_at:
            progress.held_at = None  # the checkpoint is written
        session.apply()

    _, session, thread, drain = run(poll)
    while not over or session.progress.scheduled_updates.count <= over[0]:
        thread.join(0.05)
    end(thread, drain)
    last = len(events) - 1 - events[::-1].index(over[0])
    assert events[last + 1 : last + 3] == [NO_END, "steps"]


def test_steps_that_nobody_does_are_left_to_the_next_leader_where_there_may_be_one(monkeypatch):
    monkeypatch.setattr(chief_module, "DRAIN_TIMEOUT_S", 0.2)
    monkeypatch.setattr(WorkerPace, "longest_wait_s", 0.0)
    _, session, thread, drain = run(lambda dispatcher, session: None, lost_after_s=60.0)
    while not session.progress.outstanding:
        thread.join(0.05)
    end(thread, drain)
    assert session.progress.ends_with_open_updates and session.progress.outstanding


def test_a_look_that_takes_long_is_awaited_a_moment_at_a_time_and_goes_on_meanwhile():
    go_on, seen = threading.Event(), []

    def poll(what):
        assert go_on.wait(10)
        seen.append(what)

    with BackgroundPoller() as upkeep:
        assert upkeep.ended_within(0), "none was begun"
        upkeep.begin(lambda: poll("rows"))
        assert upkeep.is_under_way and not upkeep.ended_within(0) and not seen
        go_on.set()
        assert upkeep.ended_within(10) and not upkeep.is_under_way
        upkeep.begin(lambda: poll("more"))
    assert seen == ["rows", "more"], "the end waits for the look under way"


def refuse():
    raise OSError("the ps is gone")


def test_the_error_of_a_look_is_that_of_its_caller():
    with BackgroundPoller() as upkeep, pytest.raises(OSError, match="the ps is gone"):
        upkeep.begin(refuse)
        upkeep.ended_within(10)


def test_the_error_of_the_last_look_is_told_at_the_end():
    with pytest.raises(OSError, match="the ps is gone"), BackgroundPoller() as upkeep:
        upkeep.begin(refuse)


def test_after_another_error_nobody_waits_for_a_look_that_may_never_end():
    answer = threading.Event()
    with pytest.raises(ValueError, match="a worker failed"), BackgroundPoller() as upkeep:
        upkeep.begin(lambda: answer.wait(60))
        raise ValueError("a worker failed")
    assert upkeep.is_under_way
    answer.set()


class Rounds(RunProgress):
    """Rounds of three workers, of which worker 1 does not push any more in round 4."""

    applied = 4


def test_a_worker_that_holds_up_a_round_is_asked_to_start_again_and_no_other():
    config = CONFIG.with_values({"mode.name": "sync-ps", "cluster.workers": 3})
    progress, asked, now, present = Rounds(config, 100), [], [100.0], {0, 1, 2}
    progress.pace = SimpleNamespace(longest_wait_s=5.0)
    progress._applied_steps.add(np.array([*range(12), 12, 14]))
    session = SimpleNamespace(progress=progress, store=STORE, graphs=None)
    chief = Chief(
        config, session, None,
        lost_after_s=60.0, start_again=lambda *one: asked.append(one), clock=lambda: now[0],
        present=lambda: frozenset(present),
    )  # fmt: skip

    def poll(seconds):
        now[0] = 100.0 + seconds
        chief._ask_late_workers_to_restart()
        return len(asked)

    assert [poll(seconds) for seconds in (0.0, 29.0, 31.0, 40.0)] == [0, 0, 1, 1]
    assert asked == [([1], "it has sent no gradient for 30 s, and the other workers wait for it")]
    present.remove(1)  # it starts again, and takes its time
    assert poll(200.0) == 1
    present.add(1)
    assert [poll(seconds) for seconds in (201.0, 230.0, 232.0)] == [1, 1, 2]
    progress.applied = 5  # the round is over: the next one has a time of its own
    assert poll(250.0) == 2
