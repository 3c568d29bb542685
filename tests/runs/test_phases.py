"""Where the time of each step went."""

import pytest

from ps_cluster.runs import phases
from tests.helpers.ledgers import rows_of

WHOLE = ("worker", *phases.PHASE_COLUMNS)
FROM_SCHEDULE = ("worker", "scheduled_time", "asked_time", "applied_time")


def rows_with(columns, *steps):
    """Return a row for each of `steps`, with these values in these columns."""
    return rows_of(range(len(steps)), **dict(zip(columns, zip(*steps, strict=True))))


def test_shares_are_of_the_time_of_the_whole_run_and_sum_to_one():
    found = phases.time_shares(rows_with(WHOLE, (0, 10, 10.5, 11, 13, 13, 13.5, 14), (1, 10, 10, 11, 12, 18, 19, 20)))
    assert list(found[0].by_name.values()) == pytest.approx([0.05, 0.05, 0.2, 0, 0.05, 0.05, 0, 0, 0.6])
    assert list(found[1].by_name.values()) == pytest.approx([0, 0.1, 0.1, 0.6, 0.1, 0.1, 0, 0, 0])
    assert list(found[0].by_name) == [*phases.PHASES, "returns", "dispatch", "idle"]


def test_shares_of_no_rows_are_nobodys():
    assert phases.time_shares(rows_with(WHOLE)) == {}


def test_a_parameter_server_whose_clock_is_behind_makes_no_phase_negative():
    [shares] = phases.time_shares(
        rows_with(WHOLE, (0, 10, 10, 10, 12, 12, 11, 11), (0, 12, 12, 12, 14, 14, 14, 15))
    ).values()
    assert list(shares.by_name.values()) == pytest.approx([0, 0, 0.8, 0, 0, 0.2, 0, 0, 0])


def test_a_free_worker_idles_until_a_dispatch_is_scheduled_and_within_one_its_answer_returns():
    rows = rows_with(FROM_SCHEDULE, (0, 1, 2, 3), (0, 1, 3.5, 4), (0, 2, 5, 6), (0, 8, 9, 10))
    assert phases.gap_times(rows).T.tolist() == [[2, 2, 2, 2], [3, 3, 3, 3.5], [4, 4, 5, 5], [6, 8, 9, 9]]


def test_a_worker_that_comes_late_is_free_from_when_the_first_one_asked():
    assert phases.gap_times(rows_with(FROM_SCHEDULE, (0, 1, 2, 9), (1, 1.5, 5, 9))).T.tolist() == [
        [2, 2, 2, 2],
        [2, 2, 5, 5],
    ]
