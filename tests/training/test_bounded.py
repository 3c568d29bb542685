"""Workers under a bound, as threads of this process; the waiting is what a parameter server runs."""

import numpy as np
import pytest

from ps_cluster.server.shard import APPLIED, DROPPED, NO_END
from ps_cluster.training.modes.bounded import LEASE_S, BoundedShard
from tests.helpers.stores import LENGTH, ledger_of, make_store, pull, row, state_of
from tests.helpers.waiting import admit, bounded_step, identity, run_workers

pytestmark = pytest.mark.slow

START = np.linspace(-1, 1, LENGTH)


def store_with(steps=400, **bounds):
    values = {"mode.name": "bounded", "training.batch_size_per_worker": 1}  # of a large batch the lease lasts longer
    return make_store(
        kind=BoundedShard, steps=steps, rule="sgd", values=values | {f"mode.{name}": n for name, n in bounds.items()}
    )


def take(store, step, worker):
    """Begins and ends the step."""
    admit(store, worker)
    push(store, step, worker, pull(store, worker))


def push(store, step, worker, pulled):
    return store.push(identity(step), pulled.versions, pulled.weights, pulled.statistics, row(worker=worker)).numpy()


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
        take(store, number, 1)
    assert push(store, bound, 0, old).tolist() == [APPLIED]
    [rows], _ = ledger_of(store)
    assert rows["staleness"].tolist() == [0] * bound + [bound]


def test_a_gradient_beyond_the_bound_is_dropped_and_counted():
    store = store_with(max_staleness=1)
    old = pull(store)
    take(store, 0, 0)
    take(store, 1, 0)
    assert push(store, 2, 1, old).tolist() == [DROPPED]
    [rows], [counts] = ledger_of(store)
    assert (counts["version"], counts["dropped"], counts["accepted"]) == (2, 1, 2) and rows["step"].tolist() == [0, 1]


@pytest.mark.parametrize("bounds", [{"max_staleness": 0}, {"max_clock_lag": 0}], ids=str)
def test_nobody_waits_for_a_worker_that_the_chief_knows_to_be_gone_as_after_scale(bounds):
    store = store_with(**bounds)
    for worker in range(3):
        take(store, worker, worker)
    admit(store, 2)
    old = pull(store, 2)
    store.tick(0.25, last_step=NO_END, present={0, 1})
    run_workers(lambda worker: [take(store, 3 + 2 * number + worker, worker) for number in range(4)], workers=2)
    assert push(store, 11, 2, old).tolist() == [DROPPED], "the bounds hold for it all the same"
    store.tick(0.25, last_step=NO_END, present={0, 1, 2})
    take(store, 11, 2)
    _, [counts] = ledger_of(store)
    assert (counts["version"], counts["dropped"]) == (12, 1)


@pytest.mark.parametrize("bounds", [{"max_staleness": 1}, {"max_staleness": 1, "max_clock_lag": 1}], ids=str)
def test_a_worker_that_is_taken_for_dead_stops_nobody_and_its_late_gradient_is_dropped(bounds):
    store = store_with(**bounds)
    admit(store, 0)
    old = pull(store, 0)
    store.tick(LEASE_S, last_step=NO_END)
    run_workers(lambda worker: [take(store, 3 * number + worker + 1, worker + 1) for number in range(4)], workers=2)
    assert push(store, 0, 0, old).tolist() == [DROPPED]
    _, [counts] = ledger_of(store)
    assert (counts["version"], counts["dropped"], counts["accepted"]) == (8, 1, 8)
