"""Mode elastic: a ps is lost for good, Ctrl-C drains, and a resumed run completes."""

import os
import signal

import pytest

from ps_cluster.runs.resharding import newest_aligned
from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    ELASTIC,
    PROJECT,
    SNAPSHOTS,
    finish,
    start,
    start_run,
    stop,
    summary_of,
    tasks,
    unhurried,
    wait_until_it_trains_without,
)

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]


def test_a_run_that_lost_a_ps_for_good_goes_on_drains_at_ctrl_c_and_is_resumed_with_three(tmp_path):
    run_dir, mode = tmp_path / "run", PROJECT / "tests/doors/impatient_mode.py"
    size = ("--workers", 2, "--ps", 2, "--steps", 200, "--no-evaluator")
    options = (*size, *ELASTIC, *unhurried(workers=2, seconds=0.2), *SNAPSHOTS)
    process = start_run(run_dir, "--mode", f"{mode}:Impatient", *options)
    wait_until(lambda: newest_aligned(run_dir / "snapshots"))
    lost = tasks(run_dir)["ps", 0]["pid"]
    os.kill(lost, signal.SIGKILL)
    wait_until_it_trains_without(run_dir, {lost})
    output = stop(process)
    assert_none_left(run_dir)
    assert "training continues without ps-0" in output and "from the newest snapshot" in output
    stopped = summary_of(run_dir)
    assert_ledger_is_exact(stopped)
    assert len(stopped["proof"]["shards"]) == 1
    assert [server["parameters"] is None for server in stopped["parameter_servers"]] == [False, True]
    steps = stopped["updates"]["applied"] + 20
    finish(start("run", "--resume", run_dir, "--ps", 3, "--steps", steps, "--code", mode))
    assert_none_left(run_dir)
    assert_ledger_is_exact(summary_of(run_dir), steps)
    assert len(summary_of(run_dir)["proof"]["shards"]) == 3
