"""The search for the rates of recipes: which trainings it compares, and what it prints of them."""

from math import log2

import pytest

from benchmarks import staleness_chart
from benchmarks.default_rates import SEARCHED, arms_of, rows_of
from benchmarks.records import keep
from benchmarks.trials import COLUMNS, Choice
from ps_cluster.config import build_config


def searched(arm, best, score, tmp_path):
    """Write a record in which the search of an arm is complete. `best`: the choice that has `score`; others are worse."""
    tried, rows = {}, []
    while wanted := arm.missing(tried):
        for choice in wanted:
            tried[choice] = score - 0.1 * abs(log2(choice.rate / best.rate)) - 0.01 * (choice.momentum != best.momentum)
            rows.append({"arm": arm.name, **choice.model_dump(), "seed": 0, "held_out": 10, "score": tried[choice]})
    keep(record := tmp_path / "rate_trials.json", [{**row, "commit": "c"} for row in rows], COLUMNS)
    return record


@pytest.mark.parametrize("search", SEARCHED)
def test_each_arm_has_its_own_name_and_settings_that_fit_together(search):
    arms = arms_of(search)
    others = [one for other in SEARCHED if other != search for one in arms_of(other).values()]
    assert len({one.name for one in (*arms.values(), *others)}) == len(arms) + len(others)
    for (kind, _), one in arms.items():
        config = build_config(None, {**one.settings, "optimizer.learning_rate": one.rates[0]})
        work, _ = SEARCHED[search]
        assert config.training.batch_size_per_worker == work.batch * (3 if kind == "sync" else 1)
        assert (config.mode.name == "async") == (kind == "stale")


def test_the_trials_of_the_staleness_chart_are_used_again():
    charted = {one.name: one for one in staleness_chart.arms_of("byte_lm")}
    shared = [one for (kind, _), one in arms_of("byte_lm").items() if kind != "sync"]
    assert len(shared) == 5 and all(charted[one.name] == one for one in shared)


def test_a_rule_is_listed_when_its_search_is_complete(tmp_path):
    arm = arms_of("mlp")["sync", "muon"]
    record = searched(arm, Choice(rate=0.02, momentum=0.5), 0.6, tmp_path)
    row = {"network": "mlp", "modes": "sync, sync-ps", "muon": "60.00 (0.02, 0.5)"}
    assert rows_of("mlp", record) == [row]
