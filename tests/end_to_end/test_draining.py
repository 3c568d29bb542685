"""Modes bounded and elastic: the bounds hold, a ps is lost for good, Ctrl-C drains, and a resumed run completes."""

import os
import signal

import pytest

from ps_cluster.runs.checkpoints import newest_even
from tests.helpers.clocks import unseen
from tests.helpers.finished_runs import assert_ledger_is_exact, ledger_rows, update_columns, wait_s
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    ELASTIC,
    FEW_EXAMPLES,
    PROJECT,
    SNAPSHOTS,
    finish,
    run,
    start,
    start_run,
    stop,
    summary_of,
    tasks,
    unhurried,
    wait_until_it_trains_without,
)

pytestmark = pytest.mark.cluster


def test_both_bounds_hold_with_a_straggler_whose_gradients_would_be_staler(tmp_path):
    bounds = ("--mode", "bounded", "--max-staleness", 3, "--max-clock-lag", 1)
    slow = (*FEW_EXAMPLES, "--straggler", "2:+0.1s", "--steps", 60, "--no-evaluator")
    summary = run(tmp_path / "run", *bounds, *slow)
    assert_ledger_is_exact(summary, 60)
    rows = update_columns(tmp_path / "run")
    assert 1 < summary["staleness"]["max"] <= 3 and not unseen(rows, 1) and unseen(rows, 0)
    assert min(wait_s(row) for row in ledger_rows(tmp_path / "run") if row["worker"] == "2") >= 0.1


def test_a_run_that_lost_a_ps_for_good_goes_on_drains_at_ctrl_c_and_is_resumed_with_three(tmp_path):
    run_dir, mode = tmp_path / "run", PROJECT / "tests/doors/impatient_mode.py"
    options = (
        "--workers",
        2,
        "--ps",
        2,
        "--steps",
        200,
        "--no-evaluator",
        *ELASTIC,
        *unhurried(workers=2, seconds=0.2),
    )
    process = start_run(run_dir, "--mode", f"{mode}:Impatient", *options, *SNAPSHOTS)
    wait_until(lambda: newest_even(run_dir / "snapshots"), within_s=90)
    lost = tasks(run_dir)["ps", 0]["pid"]
    os.kill(lost, signal.SIGKILL)
    wait_until_it_trains_without(run_dir, {lost})
    output = stop(process)
    assert_none_left(run_dir)
    assert "training goes on without ps-0" in output and "from the newest snapshot" in output
    stopped = summary_of(run_dir)
    assert_ledger_is_exact(stopped)
    assert len(stopped["proof"]["slices"]) == 1
    assert [server["parameters"] is None for server in stopped["parameter_servers"]] == [False, True]
    steps = stopped["updates"]["applied"] + 20
    finish(start("run", "--resume", run_dir, "--ps", 3, "--steps", steps, "--code", mode))
    assert_none_left(run_dir)
    assert_ledger_is_exact(summary_of(run_dir), steps)
    assert len(summary_of(run_dir)["proof"]["slices"]) == 3
