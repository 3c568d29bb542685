"""The rows of several shards, joined into one for each step."""

import numpy as np
import pytest

from ps_cluster.runs.ledger import COLUMNS, ShardJoiner
from ps_cluster.runs.ledger import rows_of as rows_of_table
from tests.helpers.ledgers import random_rows, rows_of

NONE = rows_of([])


def test_a_table_of_numbers_is_read_as_rows():
    table = np.arange(2.0 * len(COLUMNS)).reshape(2, -1)
    rows = rows_of_table(table)
    assert [[row[name] for name in COLUMNS] for row in rows] == table.tolist()
    assert len(rows_of_table(table[:0])) == 0


def test_an_update_is_applied_when_its_last_shard_is_and_as_stale_as_on_any_shard():
    first, second = random_rows(3, seed=1), random_rows(3, seed=2)
    joined = ShardJoiner(2).add([first, second])
    assert joined["staleness"].tolist() == np.maximum(first["staleness"], second["staleness"]).tolist()
    assert joined["rate_factor"].tolist() == np.minimum(first["rate_factor"], second["rate_factor"]).tolist()
    last = np.where(second["applied_time"] > first["applied_time"], 1, 0)
    for name in ("entered_time", "applied_time"):
        assert joined[name].tolist() == np.choose(last, [first[name], second[name]]).tolist()
    remainders = {"remainder_before", "remainder_after"}
    for name in remainders:
        assert joined[name].tolist() == np.hypot(first[name], second[name]).tolist()
    for name in set(COLUMNS) - {"staleness", "rate_factor", "entered_time", "applied_time"} - remainders:
        assert joined[name].tolist() == first[name].tolist()


def test_a_step_waits_until_every_shard_has_it():
    joiner = ShardJoiner(3)
    assert joiner.add([rows_of([0, 1]), rows_of([1]), NONE])["step"].tolist() == []
    assert joiner.add([NONE, NONE, rows_of([1, 0])])["step"].tolist() == [1]
    assert joiner.waiting["step"].tolist() == [0, 0] and joiner.waiting_shards.tolist() == [0, 2]
    assert joiner.add([NONE, rows_of([0]), NONE])["step"].tolist() == [0]
    assert len(joiner.waiting) == len(joiner.waiting_shards) == 0


def test_shards_of_different_processes_mix_steps_unless_all_take_part_in_each():
    rows = [rows_of([0, 1], pid=7), rows_of([0, 1], pid=8)]
    mixing, shared = ShardJoiner(2), ShardJoiner(2, shared=True)
    assert mixing.add(rows)["step"].tolist() == shared.add(rows)["step"].tolist() == [0, 1]
    assert (mixing.mixed, shared.mixed) == (2, 0)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_whatever_the_order_and_however_they_are_parted_each_step_comes_once(shards):
    random, rows = np.random.default_rng(shards), random_rows(300)
    orders = [np.argsort(np.arange(300) + random.uniform(0, 40, 300)) for _ in range(shards)]
    joiner, found = ShardJoiner(shards), []
    for parts in zip(*(np.split(order, np.sort(random.integers(0, 300, 12))) for order in orders)):
        joined = joiner.add([rows[part] for part in parts])
        assert (np.diff(joined["step"]) > 0).all(), "in the order of steps"
        found.append(joined)
    found = np.sort(np.concatenate(found), order="step")
    for name in ("remainder_before", "remainder_after"):  # the norm over all shards, which have equal remainders here
        assert found[name] == pytest.approx(np.sqrt(shards) * rows[name])
        found[name] = rows[name]
    assert (found == rows).all() and len(joiner.waiting) == 0 and joiner.mixed == 0


def test_steps_are_counted_that_two_processes_pushed_to_different_shards():
    joiner = ShardJoiner(2)
    joiner.add([rows_of([0, 1, 2], pid=[7, 7, 8]), rows_of([0, 1], pid=[7, 9])])
    assert joiner.mixed == 1
    joined = joiner.add([NONE, rows_of([2], pid=9)])
    assert joiner.mixed == 2 and joined["pid"].tolist() == [8]


def test_a_row_that_a_shard_has_twice_stands_for_no_other_shard():
    joiner = ShardJoiner(2)
    assert len(joiner.add([rows_of([7, 7], version=[1, 2]), rows_of([])])) == 0
    assert joiner.add([rows_of([]), rows_of([7], version=[1])])["step"].tolist() == [7]
    assert len(joiner.waiting) == 0
