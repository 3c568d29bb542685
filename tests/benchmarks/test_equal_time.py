"""How runs of equal time become a table, and what is predicted from them for machines of their own."""

import pytest

from benchmarks import equal_time
from benchmarks.equal_time import MODES, SLOW, after_examples, differences, figure, rows_of
from benchmarks.records import keep
from ps_cluster.tools.compare.records import read_record
from ps_cluster.tools.simulate.costs import SHIPPED_COSTS, read_costs
from tests.helpers.fake_runs import Fake, write_run

SCORES = ((0.4, 30.0, 200_000), (0.6, 60.0, 400_000), (0.8, 240.0, 1_600_000))


@pytest.fixture
def runs(tmp_path):
    """Two seeds of each mode. Async is 1 point better than the others, and a slow worker costs sync half of its images."""
    found = []
    for one in MODES:
        for straggler in ("none", SLOW) if one.simulated else ("none",):
            for seed in (0, 1):
                more = 0.01 * (one.mode == "async")
                less = 0.5 if (one.mode, straggler) == ("sync", SLOW) else 1.0
                scores = tuple((score + more, at, int(less * count)) for score, at, count in SCORES)
                settings = {
                    **one.settings, "mode.name": one.mode, "cluster.straggler": straggler, "training.seed": seed,
                    "training.max_seconds": 240.0, "optimizer.learning_rate": 0.01,
                }  # fmt: skip
                if not one.simulated:
                    del settings["cluster.straggler"]
                fake = Fake(
                    settings, scores, examples=scores[-1][2], train_seconds=240.0, outcome="stopped", limit_s=240.0
                )
                found.append(read_record(write_run(tmp_path / f"{len(found)}", fake)))
    return found


def test_a_row_has_the_accuracies_after_equal_times_and_a_single_process_has_no_slow_worker(runs):
    rows = rows_of(runs, read_costs(SHIPPED_COSTS))
    assert len(rows) == 2 * len(MODES) - 1
    sync = next(row for row in rows if row["mode"] == "sync")
    assert sync["60"] == pytest.approx([60.0, 60.0]) and sync["240"] == pytest.approx([80.0, 80.0])
    assert sync["speed"] == pytest.approx([1_600_000 / 240] * 2)


def test_accuracies_on_own_machines_are_those_after_as_many_images_as_simulate_predicts(runs):
    rows = {(row["straggler"], row["mode"]): row for row in rows_of(runs, read_costs(SHIPPED_COSTS))}
    equal, slow = (rows[title, "sync"]["own_speed"] for title in equal_time.TITLES.values())
    assert 0.15 < slow / equal < 0.25, "sync waits for the worker that is five times slower"
    kept = rows[equal_time.TITLES[SLOW], "async"]["own_speed"] / rows[equal_time.TITLES["none"], "async"]["own_speed"]
    assert 0.65 < kept < 0.8, "async keeps two workers and a fifth, of three"
    sync = rows[equal_time.TITLES[SLOW], "sync"]
    run = next(run for run in runs if run.config.mode.name == "sync" and run.straggler == SLOW)
    found = after_examples(run, 60 * slow)
    assert found is not None and sync["own 60"] == pytest.approx([100 * found] * 2)
    assert rows[equal_time.TITLES["none"], "single"].get("own 60") is None


def test_an_accuracy_is_not_extrapolated(runs):
    run = next(run for run in runs if run.config.mode.name == "sync" and run.straggler == SLOW)
    assert after_examples(run, 150_000) == pytest.approx(0.5)
    assert after_examples(run, 99_000) is None and after_examples(run, 800_001) is None


def test_async_is_compared_with_each_mode_after_each_time_and_drawn(runs):
    record = keep(None, rows_of(runs, read_costs(SHIPPED_COSTS)), equal_time.COLUMNS)
    found = differences(record)
    assert len(found) == 2 * 3 * 3, "stragglers, times, other modes"
    assert all(one.values == pytest.approx((1.0, 1.0)) for one in found)
    shown = [panel.get_legend_handles_labels()[1] for panel in figure(record).figure.axes]
    assert [len(labels) for labels in shown] == [4, 4, 3, 3], "a single process is measured and not predicted"
