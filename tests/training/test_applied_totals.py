"""Sums that nobody reads the rows again for are those of all the rows."""

import json

import numpy as np
import pytest

from ps_cluster.runs.checkpoints import TallyState
from ps_cluster.runs.result_rows import StalenessRow, WorkerRow
from ps_cluster.training.applied_totals import AppliedTotals
from tests.helpers.ledgers import rows_of

NOBODY_LATE = 0


def tally_of(*rows):
    """`rows`: (worker, pid, when applied), 10 examples each, added one after the other."""
    ours = AppliedTotals()
    for worker, pid, second in rows:
        ours.add(rows_of([0], worker=worker, pid=pid, examples=10), np.array([second]))
    return ours


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 1), (20, 1), (21, 9), (4321, 1000)])
def test_the_staleness_is_that_of_numpy_over_all_rows(count, most):
    staleness = np.random.default_rng(count * (most + 1)).integers(0, most + 1, count)
    ours = AppliedTotals()
    for part in np.array_split(rows_of(range(count), staleness=staleness), 7):
        ours.add(part, np.zeros(len(part)))
    found = ours.staleness_summary()
    assert found.mean == pytest.approx(staleness.mean())
    assert found.p50 == np.percentile(staleness, 50, method="lower")
    assert found.p95 == np.percentile(staleness, 95, method="lower")
    assert found.max == staleness.max()
    values, counts = np.unique(staleness, return_counts=True)
    assert found.histogram == dict(zip(map(str, values), counts.tolist()))
    assert StalenessRow.model_validate_json(found.model_dump_json()) == found


def test_of_no_rows_nothing_is_known():
    ours = AppliedTotals()
    ours.add(rows_of([]), np.zeros(0))
    assert ours.staleness_summary() == StalenessRow()
    assert (ours.gradients, ours.examples, ours.workers()) == (0, 0, [])
    assert ours.examples_per_second(None, NOBODY_LATE) is None and ours.examples_per_second(5.0, NOBODY_LATE) is None


def test_a_worker_that_was_started_again_has_a_row_for_each_process():
    ours = AppliedTotals()
    ours.add(rows_of(range(4), worker=[1, 0, 1, 1], pid=[8, 7, 9, 8], examples=[1, 10, 100, 1000]), np.zeros(4))
    ours.add(rows_of([4], worker=1, pid=9, examples=10_000), np.zeros(1))
    assert ours.workers() == [
        WorkerRow(index=0, pid=7, updates=1, examples=10),
        WorkerRow(index=1, pid=8, updates=2, examples=1001),
        WorkerRow(index=1, pid=9, updates=2, examples=10_100),
    ]
    assert (ours.gradients, ours.examples) == (5, 11_111)


def test_the_rate_counts_from_when_every_worker_has_had_its_first_update():
    rows = [(0, 7, 0.0), (0, 7, 1.0), (1, 8, 10.0), (0, 7, 11.0), (1, 8, 12.0)]
    assert tally_of(*rows).examples_per_second(12.0, NOBODY_LATE) == 20 / 2
    assert tally_of(*rows[:3]).examples_per_second(10.0, NOBODY_LATE) is None


def test_rows_that_come_together_are_told_apart_by_their_times():
    ours = AppliedTotals()
    rows = rows_of(range(5), worker=[0, 1, 0, 0, 1], examples=10)
    ours.add(rows, np.array([11.0, 10.0, 0.0, 1.0, 12.0]))
    assert ours.examples_per_second(12.0, NOBODY_LATE) == 20 / 2


def test_a_worker_that_was_started_again_does_not_move_the_moment_from_which_the_rate_counts():
    ours = tally_of((0, 7, 0.0), (1, 8, 2.0), (0, 7, 4.0), (1, 99, 90.0), (0, 98, 102.0))
    assert ours.examples_per_second(102.0, NOBODY_LATE) == 30 / 100


def test_the_rate_does_not_wait_for_a_backup_worker():
    ours = tally_of((0, 7, 0.0), (1, 8, 1.0), (0, 7, 2.0), (2, 9, 3.0), (1, 8, 5.0))
    assert ours.examples_per_second(5.0, 1) == 30 / 4
    assert ours.examples_per_second(5.0, NOBODY_LATE) == 10 / 2


def test_it_goes_on_from_what_a_checkpoint_holds():
    random, whole, before = np.random.default_rng(0), AppliedTotals(), AppliedTotals()
    columns = {"worker": random.integers(0, 3, 100), "pid": random.integers(5, 9, 100)}
    rows = rows_of(range(100), **columns, staleness=random.integers(0, 5, 100), examples=random.integers(1, 9, 100))
    seconds = np.sort(random.uniform(0, 50, 100))
    whole.add(rows, seconds)
    before.add(rows[:30], seconds[:30])
    ours = AppliedTotals(TallyState.model_validate(json.loads(before.state.model_dump_json())))
    ours.add(rows[30:], seconds[30:])
    assert (ours.workers(), ours.staleness_summary()) == (whole.workers(), whole.staleness_summary())
    assert ours.examples_per_second(50.0, 0) == whole.examples_per_second(50.0, 0)
    assert ours.state == whole.state


def test_work_of_others_in_the_same_steps_is_theirs_and_no_further_examples():
    ours = tally_of((0, 7, 1.0), (0, 7, 2.0))
    ours.add_work(rows_of([0, 1], worker=1, pid=8, examples=10))
    ours.add_work(rows_of([]))
    assert (ours.examples, ours.gradients) == (20, 2)
    assert [(row.index, row.pid, row.updates, row.examples) for row in ours.workers()] == [(0, 7, 2, 20), (1, 8, 2, 20)]


def test_a_training_has_no_loss_if_that_of_every_step_was_no_number_and_there_were_enough_of_them():
    ours = AppliedTotals()
    assert not ours.has_no_loss(least=1), "nothing is known of it"
    ours.add(rows_of([0, 1], loss=[np.nan, np.inf]), np.zeros(2))
    assert ours.has_no_loss(least=2) and not ours.has_no_loss(least=3)
    ours.add(rows_of([2], loss=1.0), np.zeros(1))
    assert not ours.has_no_loss(least=1)
