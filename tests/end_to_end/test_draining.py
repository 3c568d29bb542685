"""Ctrl-C drains in every mode, and a resumed run completes."""

import signal

import pytest

from tests.helpers.finished_runs import ledger_rows, wait_s
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import ELASTIC, finish, start_run, summary_of, unhurried, wait_for_training

pytestmark = pytest.mark.cluster
# A drain does what is handed out, that of about two seconds; by these delays it is less than what is left.
STRAGGLER = ("--straggler", "0:+0.1s")  # each round waits for it
SLOWER = ("--straggler", "0:+0.2s")
BOUNDS = ("--max-staleness", 3, "--max-clock-lag", 0)


@pytest.mark.parametrize(
    "options",
    [
        ("sync", *STRAGGLER),
        ("sync-ps", *STRAGGLER),
        ("bounded", *BOUNDS, *SLOWER),
        ("single", *STRAGGLER),
        ("elastic", *ELASTIC, *unhurried(seconds=0.2)),
    ],
    ids=lambda options: options[0],
)
def test_ctrl_c_drains_and_a_resumed_run_completes(tmp_path, options):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 60, "--mode", *options)
    wait_for_training(run_dir, updates=5)
    process.send_signal(signal.SIGINT)
    finish(process)
    assert_none_left(run_dir)
    stopped = summary_of(run_dir)
    assert stopped["outcome"] == "stopped" and 5 <= stopped["updates"]["applied"] < 60
    assert stopped["updates"]["scheduled"] == stopped["updates"]["applied"] == stopped["evaluation"]["step"]
    finish(start_run(run_dir, resume=True))
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert summary["outcome"] == "completed" and summary["updates"]["applied"] == summary["evaluation"]["step"] == 60
    assert (summary["updates"]["duplicated"], summary["updates"]["lost"], summary["updates"]["rolled_back"]) == (
        0,
        0,
        0,
    )
    waits = [wait_s(row) for row in ledger_rows(run_dir) if row["worker"] == "0"]
    assert waits and min(waits) >= 0.1, "the straggler of this test"


def test_resuming_a_completed_run_changes_nothing(tmp_path):
    run_dir = tmp_path / "run"
    finish(start_run(run_dir, "--steps", 30, "--no-evaluator"))
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    assert "is complete, nothing is left to do" in finish(start_run(run_dir, resume=True))
    assert_none_left(run_dir)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()} == before
