"""Workers that are started and stopped while a run trains."""

import pytest

from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    finish,
    rows,
    start,
    start_run,
    stop,
    summary_of,
    tasks,
    unhurried,
    wait_for_training,
)

pytestmark = pytest.mark.cluster


def scaled(run_dir, workers):
    return finish(start("scale", run_dir, "--workers", workers))


def updates(run_dir):
    return {worker["index"]: worker["updates"] for worker in rows(run_dir)[-1]["workers"]}


def test_a_run_that_grows_and_shrinks_applies_each_update_once_and_nobody_starts_again(tmp_path):
    run_dir = tmp_path / "run"
    bounds = ("--workers", 2, "--min-workers", 1, "--max-workers", 3)
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator", *unhurried(), *bounds)
    wait_for_training(run_dir, updates=20)
    before = tasks(run_dir)
    assert "started worker-2; now 3 workers" in scaled(run_dir, 3)
    wait_until(lambda: updates(run_dir).get(2, 0) > 20, within_s=60)
    assert "stopped worker-1, worker-2; others take their steps; now 1 worker" in scaled(run_dir, 1)
    left = updates(run_dir)
    wait_until(lambda: updates(run_dir)[0] > left[0] + 40, within_s=60)
    stop(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary)
    assert summary["restarts"] == {} and summary["updates"]["rolled_back"] == 0
    assert tasks(run_dir)["chief", 0]["pid"] == before["chief", 0]["pid"]
    assert [(row["before"], row["workers"]) for row in summary["scaled"]] == [(2, 3), (3, 1)]
    assert [worker["updates"] > 20 for worker in summary["workers"]] == [True, True, True]
