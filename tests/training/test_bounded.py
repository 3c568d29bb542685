"""Test mode `bounded` with workers as threads of this process. They wait in the parameter server's own code.

The tests of the bound on staleness come first, then those of the bound on clocks (Ho et al. 2013).
"""

import threading

import numpy as np
import pytest

from ps_cluster.server.shard import APPLIED, DROPPED, NO_END, REFUSED
from ps_cluster.server.store import StepPush
from ps_cluster.training.modes.bounded import LEASE_S, BoundedShard
from tests.helpers.clocks import unseen
from tests.helpers.processes import wait_until
from tests.helpers.stores import LENGTH, ledger_of, make_store, pull, row, state_of
from tests.helpers.waiting import admit, bounded_step, identity, run_workers

pytestmark = pytest.mark.slow

START = np.linspace(-1, 1, LENGTH)


def store_with(steps=400, workers=3, **bounds):
    values = {"mode.name": "bounded", "cluster.workers": workers}
    values["training.batch_size_per_worker"] = 1  # a larger batch has a longer lease
    values |= {f"mode.{name}": bound for name, bound in bounds.items()}
    return make_store(kind=BoundedShard, steps=steps, rule="sgd", values=values)


def push(store, worker, step, pulled=None):
    pulled = pulled or pull(store, worker)
    return store.push(
        StepPush(identity(step), pulled.versions, pulled.weights, pulled.statistics, row(worker=worker))
    ).numpy()


def take(store, worker, step, left=2):
    """Begin and end a step."""
    admit(store, worker, left)
    push(store, worker, step)


def test_without_staleness_updates_are_made_one_after_the_other_whoever_is_slow():
    store = store_with(max_staleness=0, steps=24)
    step = bounded_step(store, lambda worker: 0.01 if worker == 2 else 0.001)
    run_workers(lambda worker: [step(number, worker) for number in range(worker, 24, 3)])
    [rows], [counts] = ledger_of(store)
    assert rows["step"].tolist() == list(range(24)) and counts["version"] == 24
    assert not rows["staleness"].any()
    assert state_of(store)["weights"] == pytest.approx(START * 0.9**24, rel=1e-5)


def test_an_update_may_be_as_stale_as_the_bound():
    bound = 4
    store = store_with(max_staleness=bound)
    admit(store, 0)
    old = pull(store, 0)
    for number in range(bound):
        take(store, 1, number)
    assert push(store, 0, bound, old).tolist() == [APPLIED]
    [rows], _ = ledger_of(store)
    assert rows["staleness"].tolist() == [0] * bound + [bound]


def test_a_push_that_would_make_another_worker_too_stale_waits_until_that_worker_has_pushed():
    store = store_with(max_staleness=1)
    admit(store, 0)
    old = pull(store, 0)
    take(store, 1, 0)
    admit(store, 1)
    second = begun(push, store, 1, 2)
    assert waits(store, second), "it would make the update of worker 0 stale by 2"
    assert push(store, 0, 1, old).tolist() == [APPLIED]
    assert not waits(store, second)
    [rows], [counts] = ledger_of(store)
    assert rows["version"].tolist() == [1, 2, 3] and rows["staleness"].tolist() == [0, 1, 1]
    assert counts["dropped"] == 0


def test_a_gradient_beyond_the_bound_is_dropped_and_counted():
    store = store_with(max_staleness=1)
    old = pull(store)
    take(store, 0, 0)
    take(store, 0, 1)
    assert push(store, 1, 2, old).tolist() == [DROPPED]
    [rows], [counts] = ledger_of(store)
    assert (counts["version"], counts["dropped"], counts["accepted"]) == (2, 1, 2) and rows["step"].tolist() == [0, 1]


@pytest.mark.parametrize("bounds", [{"max_staleness": 0}, {"max_clock_lag": 0}], ids=str)
def test_nobody_waits_for_a_worker_that_the_chief_knows_to_be_gone_as_after_scale(bounds):
    store = store_with(**bounds)
    for worker in range(3):
        take(store, worker, worker)
    admit(store, 2)
    old = pull(store, 2)
    store.tick(0.25, handed_out=NO_END, present={0, 1})
    run_workers(lambda worker: [take(store, worker, 3 + 2 * number + worker) for number in range(4)], workers=2)
    assert push(store, 2, 11, old).tolist() == [DROPPED], "the bounds hold for it all the same"
    store.tick(0.25, handed_out=NO_END, present={0, 1, 2})
    take(store, 2, 11)
    _, [counts] = ledger_of(store)
    assert (counts["version"], counts["dropped"]) == (12, 1)


@pytest.mark.parametrize("bounds", [{"max_staleness": 1}, {"max_staleness": 1, "max_clock_lag": 1}], ids=str)
def test_a_worker_that_is_taken_for_dead_stops_nobody_and_its_late_gradient_is_dropped(bounds):
    store = store_with(**bounds)
    admit(store, 0)
    old = pull(store, 0)
    store.tick(LEASE_S, handed_out=NO_END)
    run_workers(lambda worker: [take(store, worker + 1, 3 * number + worker + 1) for number in range(4)], workers=2)
    assert push(store, 0, 0, old).tolist() == [DROPPED]
    _, [counts] = ledger_of(store)
    assert (counts["version"], counts["dropped"], counts["accepted"]) == (8, 1, 8)


def clocks(store, workers=3):
    return state_of(store)["clocks"][:workers].tolist()


def tick(store, seconds=0.0, handed_out=NO_END, **options):
    store.tick(seconds, handed_out=handed_out, **options)


def begun(function, *arguments):
    """Return a thread in which a worker calls `function`, where it may have to wait."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def asks(store, worker, left=2):
    """Return a thread in which the worker asks to begin a step."""
    return begun(admit, store, worker, left)


def waits(store, thread):
    """Return whether the worker of a thread still waits. It has tried again since the last change."""
    wait_until(lambda: not thread.is_alive() or store.shards[0].changed.waiting.numpy())
    return thread.is_alive()


def test_who_begins_a_step_has_seen_every_update_that_is_older_than_the_bound():
    store = store_with(max_clock_lag=2, steps=24)
    step = bounded_step(store, lambda worker: 0.02 if worker == 2 else 0.0)
    run_workers(lambda worker: [step(number, worker) for number in range(worker, 24, 3)])
    [rows], _ = ledger_of(store)
    assert not unseen(rows, 2) and clocks(store) == [8, 8, 8]
    assert unseen(rows, 1), "the quick ones go ahead as far as they may"


def test_a_worker_without_a_step_holds_nobody_back_once_the_last_dispatch_has_begun():
    store = store_with(max_clock_lag=0)
    take(store, 0, step=0)
    ahead = asks(store, 0, left=3)
    assert waits(store, ahead), "the others may still come"
    tick(store, handed_out=5)
    assert waits(store, ahead), "one dispatch has not begun"
    admit(store, 1, left=1)
    tick(store, handed_out=5)
    assert waits(store, ahead), "worker 1 is under way"
    push(store, 1, step=4)
    assert not waits(store, ahead)


def test_workers_that_ask_for_the_last_steps_do_not_both_wait_for_one_that_will_get_none():
    store = store_with(max_clock_lag=0)
    take(store, 0, step=0)
    take(store, 1, step=1)
    last = [asks(store, 0, left=1), asks(store, 1, left=1)]
    wait_until(lambda: store.shards[0].changed.waiting.numpy() == 2)
    tick(store, handed_out=4)
    wait_until(lambda: not any(thread.is_alive() for thread in last))
    push(store, 0, step=2)
    push(store, 1, step=3)
    assert clocks(store) == [2, 2, 0], "both have taken a last step, and worker 2 none"


def test_a_worker_whose_last_steps_are_on_their_way_to_it_is_waited_for():
    store = store_with(max_clock_lag=0)
    for worker in range(3):
        take(store, worker, step=worker)
    take(store, 0, step=3)
    take(store, 1, step=4, left=1)
    ahead = asks(store, 0, left=1)  # step 6, the last one
    tick(store, handed_out=7)
    assert waits(store, ahead), "worker 2 will get step 5"
    take(store, 2, step=5, left=1)
    assert not waits(store, ahead)
    assert clocks(store) == [2, 2, 2]


def test_a_worker_between_two_steps_of_its_dispatch_is_waited_for_to_the_end():
    store = store_with(max_clock_lag=0)
    admit(store, 0, left=2)
    admit(store, 1, left=2)
    push(store, 0, step=0)
    push(store, 1, step=2)
    tick(store, handed_out=4)
    admit(store, 0, left=1)  # worker 2 got no dispatch
    push(store, 0, step=1)
    ahead = asks(store, 0, left=1)
    assert waits(store, ahead)
    admit(store, 1, left=1)
    push(store, 1, step=3)
    assert not waits(store, ahead)


def test_a_worker_that_is_not_heard_of_is_waited_for_until_its_lease_ends():
    store = store_with(max_clock_lag=0)
    take(store, 0, step=0)
    take(store, 1, step=1)
    ahead = asks(store, 0)
    tick(store, seconds=LEASE_S - 1)
    assert waits(store, ahead)
    tick(store, seconds=2)
    assert not waits(store, ahead)


def test_the_lease_of_a_worker_is_longer_where_an_update_takes_longer():
    store, longest = store_with(max_clock_lag=0), {"longest_update_s": 3 * LEASE_S}
    take(store, 0, step=0)
    take(store, 1, step=1)
    ahead = asks(store, 0)
    tick(store, seconds=2 * LEASE_S, **longest)
    assert waits(store, ahead)
    tick(store, seconds=2 * LEASE_S, **longest)
    assert not waits(store, ahead)


def test_a_worker_that_comes_back_goes_on_at_the_lowest_clock_that_the_bound_leaves_it():
    store = store_with(max_clock_lag=2)
    tick(store, seconds=LEASE_S)
    for number in range(8):
        take(store, 0, step=number)
    assert clocks(store) == [8, 0, 0]
    admit(store, 1)
    assert clocks(store) == [8, 5, 0], "worker 0 has begun its last step at 7"
    push(store, 1, step=8)
    take(store, 0, step=9)
    ahead = asks(store, 0)
    assert waits(store, ahead), "it is 3 ahead now"
    take(store, 1, step=11)
    assert not waits(store, ahead)


def test_a_worker_that_was_killed_under_way_takes_its_place_again():
    store = store_with(max_clock_lag=0)
    admit(store, 1)  # and no push of it
    take(store, 0, step=0)
    take(store, 2, step=2)
    ahead = asks(store, 0)
    assert waits(store, ahead)
    take(store, 1, step=1)  # a new process of the same index
    assert not waits(store, ahead) and clocks(store) == [1, 1, 1]


def test_a_replay_that_is_refused_is_a_step_that_ended():
    store = store_with(max_clock_lag=0)
    take(store, 0, step=0)
    admit(store, 1)
    assert push(store, 1, step=0).tolist() == [REFUSED] and clocks(store) == [1, 1, 0]


def test_clocks_go_on_behind_a_snapshot_also_with_more_workers():
    workers = 5
    store = store_with(max_clock_lag=1, steps=20)
    for step in range(12):
        take(store, step % 3, step)
    again = store_with(max_clock_lag=1, steps=20, workers=workers)
    again.restore(state_of(store))
    assert clocks(again, workers) == [4, 4, 4] + [0] * (workers - 3)
    run_workers(lambda worker: take(again, worker, 12 + worker), workers=workers)
    found = clocks(again, workers)
    assert found[:3] == [5, 5, 5] and all(clock in (3, 4) for clock in found[3:]), "who is new begins behind the others"
