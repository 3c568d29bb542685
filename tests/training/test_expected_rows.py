"""What the rows of a training must be, according to its settings and to the settings of its earlier leaders."""

from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.runs.journal import CountedWork, JournalPart
from ps_cluster.training.expected_rows import expected_rows
from ps_cluster.training.learning_rate import ledger_settings_digest

EXAMPLES = 1_000


def rows_of_training(before=(), **settings):
    """Return what is expected of the rows.

    `before`: for each earlier leader, the rows in its journals, and whether its settings differ.
    """
    config = build_config(overrides={"training.steps": 50} | settings)
    same = ledger_settings_digest(config, config.total_steps(EXAMPLES))
    leaders = [
        CountedWork(term=term, step=1, workers=7, rows=rows, checksums=[0, 0], rules="other" if differs else same)
        for term, (rows, differs) in enumerate(before)
    ]
    histories = [[JournalPart(Path("journal"), rows[index], 0) for rows, _ in before] for index in range(config.shards)]
    return expected_rows(config, EXAMPLES, leaders, histories, examples_in_all=12)


@pytest.mark.parametrize(
    ("before", "first_rows"),
    [
        ([], [0, 0]),
        ([([5, 6], False), ([2, 2], False)], [0, 0]),
        ([([5, 6], True)], [5, 6]),
        ([([5, 6], True), ([2, 2], False)], [5, 6]),
        ([([5, 6], False), ([2, 2], True), ([1, 1], False)], [7, 8]),
    ],
)
def test_only_the_rows_after_the_last_leader_with_other_settings_are_compared_with_the_settings(before, first_rows):
    assert rows_of_training(before, **{"cluster.parameter_servers": 2}).first_rows == first_rows


def test_only_with_dynamic_steps_may_a_row_have_fewer_batches_than_the_settings_say():
    settings = {"mode.name": "diloco", "training.batch_size_per_worker": 8}
    assert rows_of_training(**settings, **{"mode.dynamic_steps": True}).examples_unit == 8
    assert rows_of_training(**settings, **{"mode.dynamic_steps": False}).examples_unit == 0


def test_the_workers_at_the_start_are_those_of_the_first_leader_and_have_no_effect_in_rounds():
    settings = {"cluster.workers": 3}
    assert rows_of_training(**settings, **{"mode.name": "async"}).workers_at_start == 3
    assert rows_of_training([([5, 6], False)], **settings, **{"mode.name": "async"}).workers_at_start == 7
    assert rows_of_training(**settings, **{"mode.name": "sync-ps"}).workers_at_start is None


def test_rates_staleness_and_numbers_of_examples_are_those_of_the_settings():
    settings = {"mode.name": "bounded", "mode.max_staleness": 3, "optimizer.learning_rate": 0.25}
    expected = rows_of_training(**settings, **{"schedule.kind": "constant", "schedule.warmup_fraction": 0.0})
    assert expected.rates(np.array([0, 49])).tolist() == [0.25, 0.25]
    found = expected.highest_rate, expected.most_staleness, expected.examples_in_all, expected.checks_factors
    assert found == (0.25, 3, 12, True)
