"""The window that a parameter server holds of its shard's ledger."""

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.runs.ledger import COLUMNS, rows_of
from ps_cluster.server.ordering import after
from ps_cluster.server.shard_ledger import ShardLedger
from tests.helpers import ledgers

WINDOW = 8


class Ledger:
    """A ledger with a small window, in plain numbers; as on a parameter server each call is a graph."""

    def __init__(self, window=WINDOW):
        self._ledger = ShardLedger(window)
        any_rows = tf.TensorSpec([None, len(COLUMNS)], tf.float64)

        def write(rows):
            return after([self._ledger.write(rows)], 0)

        self._write = tf.function(write, autograph=False, input_signature=[any_rows])
        self._has = tf.function(self._ledger.has, autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
        self._read = tf.function(self._ledger.read, autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])

    def write(self, rows):
        self._write(rows.view(np.float64).reshape(-1, len(COLUMNS)))

    def has(self, steps):
        return self._has(np.array(steps, np.int64)).numpy().tolist()

    def read(self, first):
        return rows_of(self._read(tf.constant(first, tf.int64)).numpy())

    def accepted_steps(self, closed):
        return self._ledger.accepted_steps(tf.constant(closed, tf.int64)).numpy()

    def restore(self, steps):
        self._ledger.restore(steps)

    @property
    def accepted(self):
        return int(self._ledger.accepted)


def test_at_first_it_has_no_step_and_no_row():
    ours = Ledger()
    assert not any(ours.has(range(2 * WINDOW))) and len(ours.read(0)) == 0 and ours.accepted == 0


def test_what_is_read_is_just_the_new_rows_in_the_order_of_acceptance():
    ours, rows = Ledger(), ledgers.random_rows(7)[[3, 0, 6, 1, 2, 5, 4]]
    ours.write(rows[:4])
    assert (ours.read(0) == rows[:4]).all()
    ours.write(rows[4:])
    assert (ours.read(4) == rows[4:]).all() and (ours.read(2) == rows[2:]).all()
    assert len(ours.read(7)) == len(ours.read(np.iinfo(np.int64).max)) == 0
    assert ours.accepted == 7


def test_of_more_rows_than_the_window_has_only_the_newest_are_left():
    ours, rows = Ledger(), ledgers.random_rows(11)
    for part in (rows[:6], rows[6:]):
        ours.write(part)
    assert (ours.read(0) == rows[3:]).all() and (ours.read(9) == rows[9:]).all()


@pytest.mark.parametrize("seed", range(2))
def test_however_often_the_window_wraps_it_has_the_steps_that_a_plain_set_has(seed):
    """Steps come in any order, but none that is `window` or more above one that is open, and many come again."""
    random, ours, rows = np.random.default_rng(seed), Ledger(), ledgers.random_rows(120, seed)
    plain, read, lowest = set(), 0, 0
    while lowest < len(rows):
        handed_out = np.arange(lowest, min(lowest + WINDOW, len(rows)))
        pushed = random.permutation(handed_out)[: random.integers(1, 4)].tolist()
        has = ours.has(handed_out)
        assert has == [step in plain for step in handed_out.tolist()]
        fresh = np.array([step for step in pushed if step not in plain], int)
        ours.write(rows[fresh])
        assert (ours.read(read) == rows[fresh]).all()
        read += len(fresh)
        plain |= set(fresh.tolist())
        lowest = next(step for step in range(len(rows) + 1) if step not in plain)
    assert ours.accepted == read == len(rows)


def test_a_step_that_was_done_long_ago_is_still_refused():
    ours, rows = Ledger(), ledgers.random_rows(40)
    for row in np.split(rows, 40):
        ours.write(row)
    assert ours.has(range(40)) == [True] * 40 and ours.has([40, 47, 48]) == [False] * 3


@pytest.mark.parametrize("closed", [0, 4, 6])
def test_a_snapshot_holds_what_tells_open_steps_from_accepted_ones(closed):
    first, second = Ledger(), Ledger()
    first.write(ledgers.random_rows(14)[[*range(6), 9, 12]])
    kept = first.accepted_steps(closed)
    assert kept[0] == closed and len(kept) <= 1 + 8 - closed, "closed steps take no room"
    second.restore(np.pad(kept, (0, 3)))
    second._ledger.accepted.assign(first._ledger.accepted)
    assert second.has(range(5, 14)) == first.has(range(5, 14))
    assert second.has(range(5, 14)) == [True, False, False, False, True, False, False, True, False]
    rows = ledgers.random_rows(8)[6:]
    second.write(rows)
    assert (second.read(8) == rows).all() and second.accepted == 10


@pytest.mark.parametrize("window", [2, 8, 32])
def test_a_window_of_another_length_keeps_the_newest_steps(window):
    kept = Ledger(window)
    kept.restore(np.array([7, 8, 10, 12]))  # all below 7, and 7, 9 and 11
    newest = {step % window: step for step in (*range(7), 7, 9, 11)}
    asked = range(max(0, 12 - window), 12)
    assert kept.has(asked) == [newest.get(step % window, -1) >= step for step in asked]
    assert kept.has([12, 13]) == [False, False]
