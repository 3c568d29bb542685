"""Cores as a scheduler deals them out."""

import pytest

from ps_cluster.tools.simulate.events import Cores, Events


@pytest.fixture
def ends():
    """ends(number of cores, (when it begins, seconds, threads), …) → the second at which each has ended."""

    def run(number, *jobs):
        events, found = Events(), {}
        cores = Cores(events, number)
        for index, (begins, seconds, threads) in enumerate(jobs):
            events.at(begins, cores.run, seconds, lambda index=index: found.setdefault(index, events.now), threads)
        events.run_while(lambda: len(found) < len(jobs))
        return [found[index] for index in range(len(jobs))]

    return run


def test_three_equal_threads_on_two_cores_are_not_equally_fast(ends):
    """One has a core to itself. When it is done that core takes one of the two others over: no core is ever idle."""
    assert sorted(ends(2, (0, 2, 1), (0, 2, 1), (0, 2, 1))) == [2, 3, 3]


def test_a_core_that_runs_dry_takes_over_the_thread_that_has_most_to_do(ends):
    """After 1 s one core is free, and takes over the job of 9 s, of which half a second is done."""
    assert ends(2, (0, 1, 1), (0, 9, 1), (0, 3, 1)) == [1, 9.5, 3.5]


def test_a_thread_never_has_more_than_a_core(ends):
    assert ends(4, (0, 2, 1), (1, 5, 1)) == [2, 6]


def test_a_second_thread_for_half_of_the_time_ends_with_the_first(ends):
    assert ends(2, (0, 2, 1.5)) == [2]
    assert ends(1, (0, 2, 1.5)) == [3]
    assert ends(3, (0, 2, 2.5)) == [2]
