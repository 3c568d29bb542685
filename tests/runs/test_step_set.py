"""StepSet against a plain set."""

import numpy as np
import pytest

from ps_cluster.files.values import Malformed
from ps_cluster.runs.step_set import MOST_OPEN, StepSet


def steps(*ids):
    return np.array(ids, np.int64)


def assert_equal(found: StepSet, expected: set[int]) -> None:
    first = min(set(range(len(expected) + 1)) - expected)
    above = sorted(expected - set(range(first)))
    assert (found.first_missing, found.beyond().tolist(), found.count) == (first, above, len(expected))
    assert found.end == max(expected, default=-1) + 1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("chunk", [1, 7, 500])
def test_whatever_the_order_it_holds_what_a_plain_set_holds(chunk, seed):
    random = np.random.default_rng(seed)
    order = random.permutation(np.repeat(np.arange(1500), random.integers(0, 3, 1500)))
    # Mostly in order, as steps are, or in no order at all.
    order = order[np.argsort(order + random.normal(scale=[30, 1e6][seed % 2], size=len(order)))]
    ours, plain, asked = StepSet(), set(), np.arange(2000)
    for begin in range(0, len(order), chunk):
        ids = order[begin : begin + chunk]
        repeated = len(ids) - len(set(ids.tolist()) - plain)
        assert ours.add(ids) == repeated
        plain |= set(ids.tolist())
        if begin % 70 == 0 or chunk > 7:
            assert_equal(ours, plain)
            assert ours.holds(asked).tolist() == [step in plain for step in range(2000)]
    assert ours.missing_below(1700).tolist() == sorted(set(range(1700)) - plain)


def test_it_is_restored_from_its_ids_beyond_the_first_missing_one():
    first = StepSet()
    assert first.add(steps()) == 0 and first.missing_below(2).tolist() == [0, 1]
    assert first.add(steps(0, 1, 3, 6, 3)) == 1, "an id that comes twice in one call counts once"
    second = StepSet(first.first_missing, first.beyond(), first.count)
    assert second.add(steps(2, 3, 5)) == 1
    assert_equal(second, {0, 1, 2, 3, 5, 6})


def test_a_step_is_taken_up_to_two_windows_above_the_first_missing_one():
    StepSet().add(steps(2 * MOST_OPEN - 1))
    with pytest.raises(Malformed, match=f"step {2 * MOST_OPEN} is too far above step 0, the first"):
        StepSet().add(steps(2 * MOST_OPEN))


def test_what_is_given_up_is_done_but_does_not_count():
    ours = StepSet()
    ours.add(steps(0, 2, 6))
    ours.close_below(5)
    assert (ours.first_missing, ours.count, ours.beyond().tolist()) == (5, 3, [6])
    assert ours.missing_below(8).tolist() == [5, 7]
    assert ours.add(steps(1)) == 1, "it comes too late"
    ours.add(steps(5))
    assert (ours.first_missing, ours.count) == (7, 4)


def test_giving_up_reaches_as_far_as_what_is_in_behind_it_and_also_far_ahead():
    ours = StepSet()
    ours.add(steps(1, 3, 4, 6))
    ours.close_below(3)
    assert (ours.first_missing, ours.beyond().tolist(), ours.count) == (5, [6], 4)
    ours.close_below(100_000)
    ours.close_below(7)
    assert (ours.first_missing, ours.count, ours.end) == (100_000, 4, 100_000)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_in_both_is_what_is_in_both_plain_sets(seed):
    random = np.random.default_rng(seed)
    plain = [set(random.choice(60, random.integers(0, 60), replace=False).tolist()) for _ in range(2)]
    plain = [ids | set(range(random.integers(0, 30))) for ids in plain]
    ours = [StepSet(), StepSet()]
    for own, ids in zip(ours, plain):
        own.add(np.array(sorted(ids), np.int64))
    assert_equal(ours[0].both(ours[1]), plain[0] & plain[1])


def test_memory_is_for_what_is_open_not_for_what_is_done():
    ours = StepSet()
    for begin in range(0, 500_000, 50_000):
        ours.add(np.arange(begin, begin + 50_000))
    assert (ours.first_missing, ours.count) == (500_000, 500_000)
    held = sum(value.nbytes for value in vars(ours).values() if isinstance(value, np.ndarray))
    assert held <= 200_000, "two chunks of 50,000 steps, a byte each, and no more"
