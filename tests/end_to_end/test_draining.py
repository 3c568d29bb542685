"""Ctrl-C drains, and a resumed run completes. test_synchronous.py has the modes of rounds."""

import signal

import pytest

from tests.helpers.finished_runs import ledger_rows, wait_s
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import (
    ELASTIC,
    FEW_EXAMPLES,
    finish,
    start,
    start_run,
    summary_of,
    unhurried,
    wait_for_training,
)

pytestmark = pytest.mark.cluster
# A drain does what is handed out, that of about two seconds; by these delays it is less than what is left.
STRAGGLER = (*FEW_EXAMPLES, "--straggler", "0:+0.1s")  # each round waits for it
SLOWER = (*FEW_EXAMPLES, "--straggler", "0:+0.2s")
BOUNDS = ("--max-staleness", 3, "--max-clock-lag", 0)
ONE_AT_ONCE = ("--set", "cluster.steps_per_dispatch=1")  # else two dispatches a worker are nearly all there is


@pytest.mark.parametrize(
    ("options", "ps_then"),
    [
        (("bounded", *BOUNDS, *SLOWER, *ONE_AT_ONCE), None),
        (("single", *STRAGGLER), None),
        (("elastic", "--ps", 2, *ELASTIC, *unhurried(seconds=0.2), *ONE_AT_ONCE), 3),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_ctrl_c_drains_and_a_resumed_run_completes_with_other_parameter_servers_too(tmp_path, options, ps_then):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 60, "--mode", *options)
    wait_for_training(run_dir, updates=5)
    process.send_signal(signal.SIGINT)
    finish(process)
    assert_none_left(run_dir)
    stopped = summary_of(run_dir)
    assert stopped["outcome"] == "stopped" and 5 <= stopped["updates"]["applied"] < 60
    assert stopped["updates"]["scheduled"] == stopped["updates"]["applied"] == stopped["evaluation"]["step"]
    finish(start("run", "--resume", run_dir, *(("--ps", ps_then) if ps_then else ())))
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    if ps_then:
        assert [part["rows"] for part in summary["proof"]["slices"]] == [60] * ps_then
    assert summary["outcome"] == "completed" and summary["updates"]["applied"] == summary["evaluation"]["step"] == 60
    assert (summary["updates"]["duplicated"], summary["updates"]["lost"], summary["updates"]["rolled_back"]) == (
        0,
        0,
        0,
    )
    waits = [wait_s(row) for row in ledger_rows(run_dir) if row["worker"] == "0"]
    assert waits and min(waits) >= 0.1, "the straggler of this test"
