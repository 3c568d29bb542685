"""In whatever order steps arrive, and however often, each counts once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ps_cluster.runs.ledger import ShardJoiner
from ps_cluster.runs.step_set import StepSet
from tests.helpers.ledgers import rows_of

ARRIVALS = st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=12)  # in each look, these steps


@given(ARRIVALS)
def test_a_set_of_steps_tells_each_repetition_and_holds_each_step_once(polls):
    ours, plain = StepSet(), set()
    for poll in polls:
        assert ours.add(np.array(poll, np.int64)) == len(poll) - len(set(poll) - plain)
        plain |= set(poll)
        assert ours.count == len(plain) and ours.holds(np.arange(45)).tolist() == [step in plain for step in range(45)]
    assert ours.missing_below(45).tolist() == sorted(set(range(45)) - plain)


@st.composite
def shards_of_a_run(draw):
    """(steps, for each of 2 to 4 shards its rows of each look): all steps on every shard, each in an order of its own."""
    steps, polls = draw(st.integers(1, 20)), draw(st.integers(1, 6))
    shards = []
    for number in range(draw(st.integers(2, 4))):
        order = draw(st.permutations(range(steps)))
        if number == 0:  # one shard may have rows twice
            order = order + draw(st.lists(st.integers(0, steps - 1), max_size=5))
        ends = sorted(draw(st.lists(st.integers(0, len(order)), min_size=polls - 1, max_size=polls - 1)))
        shards.append([order[begin:end] for begin, end in zip([0, *ends], [*ends, len(order)])])
    return steps, shards


@given(shards_of_a_run())
def test_a_step_is_applied_once_when_all_shards_have_it(run):
    steps, shards = run
    joiner, applied = ShardJoiner(len(shards)), []
    arrived = [set() for _ in shards]
    for poll in zip(*shards):
        applied += joiner.add([rows_of(own, applied_time=1.0) for own in poll])["step"].astype(int).tolist()
        for seen, own in zip(arrived, poll):
            seen |= set(own)
        assert sorted(applied) == sorted(set.intersection(*arrived))
    assert sorted(applied) == list(range(steps))
