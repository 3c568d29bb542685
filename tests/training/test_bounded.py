"""Workers under a bound, as threads of this process; the waiting is what a parameter server runs."""

import numpy as np
import pytest

from ps_cluster.server.shard import APPLIED, DROPPED, NO_END
from ps_cluster.training.modes.waiting import LEASE_S, BoundedShard
from tests.helpers.processes import wait_until
from tests.helpers.stores import LENGTH, ledger_of, make_store, pull, row, state_of
from tests.helpers.waiting import admit, bounded_step, identity, run_workers

START = np.linspace(-1, 1, LENGTH)


@pytest.mark.parametrize("bound", [0, 1, 2, 4])
def test_no_update_is_staler_than_the_bound_whoever_is_slow(bound):
    store = make_store(
        kind=BoundedShard, steps=60, values={"mode.name": "bounded", "mode.max_staleness": bound}, rule="sgd"
    )
    step = bounded_step(store, lambda worker: 0.01 if worker == 2 else 0.001)
    run_workers(lambda worker: [step(number, worker) for number in range(worker, 60, 3)])
    [rows], [counts] = ledger_of(store)
    assert rows["step"].tolist() == list(range(60)) and counts["version"] == 60
    assert rows["staleness"].max() <= bound


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_an_update_may_be_as_stale_as_the_bound(bound):
    store = make_store(kind=BoundedShard, values={"mode.name": "bounded", "mode.max_staleness": bound}, rule="sgd")
    admit(store, 0)
    old = pull(store, 0)
    step = bounded_step(store, lambda worker: 0.0)
    for number in range(bound):
        step(number, 1)
    outcome = store.push(identity(bound), old.versions, old.weights, old.statistics, row(worker=0))
    assert outcome.numpy().tolist() == [APPLIED]
    [rows], _ = ledger_of(store)
    assert rows["staleness"].tolist() == [0] * bound + [bound]


def test_a_gradient_that_is_still_being_computed_keeps_nobody_from_the_parameters():
    store = make_store(kind=BoundedShard, values={"mode.name": "bounded", "mode.max_staleness": 4}, rule="sgd")
    step = bounded_step(store, lambda worker: 1.0 if worker == 0 else 0.0)

    def work(worker):
        if worker == 0:
            return step(0, 0)
        wait_until(lambda: store.slices[0]._under_way[0].numpy() == 0)  # worker 0 has pulled
        return [step(number, 1) for number in (1, 2, 3)]

    run_workers(work, workers=2)
    [rows], _ = ledger_of(store)
    assert rows["staleness"].tolist() == [3, 0, 0, 0]


def test_a_bound_of_zero_is_the_sequential_mathematics():
    store = make_store(
        kind=BoundedShard, steps=30, values={"mode.name": "bounded", "mode.max_staleness": 0}, rule="sgd"
    )
    step = bounded_step(store, lambda worker: 0.002)
    run_workers(lambda worker: [step(number, worker) for number in range(worker, 30, 3)])
    assert state_of(store)["weights"] == pytest.approx(START * 0.9**30, rel=1e-5)


def test_a_gradient_beyond_the_bound_is_dropped_and_counted():
    store = make_store(kind=BoundedShard, values={"mode.name": "bounded", "mode.max_staleness": 1}, rule="sgd")
    old = pull(store)
    step = bounded_step(store, lambda worker: 0.0)
    step(0, 0)
    step(1, 0)
    outcome = store.push(identity(2), old.versions, old.weights, old.statistics, row(worker=1))
    assert outcome.numpy().tolist() == [DROPPED]
    [rows], [counts] = ledger_of(store)
    assert (counts["version"], counts["dropped"], counts["accepted"]) == (2, 1, 2) and rows["step"].tolist() == [0, 1]


BOUNDS = [{"mode.max_staleness": 1}, {"mode.max_clock_lag": 1}, {"mode.max_staleness": 1, "mode.max_clock_lag": 1}]


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_a_worker_that_is_taken_for_dead_stops_nobody_and_its_late_gradient_is_dropped(bound):
    values = {
        "mode.name": "bounded",
        "training.batch_size_per_worker": 1,
    } | bound  # of a large batch the lease lasts longer
    store = make_store(kind=BoundedShard, values=values, rule="sgd")
    admit(store, 0)
    old = pull(store, 0)
    step = bounded_step(store, lambda worker: 0.0)
    store.tick(LEASE_S, last_step=NO_END)
    run_workers(lambda worker: [step(3 * number + worker + 1, worker + 1) for number in range(4)], workers=2)
    outcome = store.push(identity(0), old.versions, old.weights, old.statistics, row(worker=0))
    assert outcome.numpy().tolist() == [DROPPED]
    _, [counts] = ledger_of(store)
    assert (counts["version"], counts["dropped"], counts["accepted"]) == (8, 1, 8)
