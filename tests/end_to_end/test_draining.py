"""Ctrl-C drains in every mode, and a resumed run completes."""

import signal

import pytest

from tests.helpers.finished_runs import ledger_rows, wait_s
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import ELASTIC, finish, start_run, summary_of, wait_for_training

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    "options",
    [
        ("sync",),
        ("sync-ps",),
        ("bounded", "--max-staleness", 3, "--max-clock-lag", 0),
        ("single",),
        ("elastic", *ELASTIC),
    ],
    ids=lambda options: options[0],
)
def test_ctrl_c_drains_and_a_resumed_run_completes(tmp_path, options):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 200, "--straggler", "0:+0.02s", "--mode", *options)
    wait_for_training(run_dir, updates=5)
    process.send_signal(signal.SIGINT)
    finish(process)
    assert_none_left(run_dir)
    stopped = summary_of(run_dir)
    assert stopped["outcome"] == "stopped" and 5 <= stopped["updates"]["applied"] < 200
    assert stopped["updates"]["scheduled"] == stopped["updates"]["applied"] == stopped["evaluation"]["step"]
    finish(start_run(run_dir, resume=True))
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert summary["outcome"] == "completed" and summary["updates"]["applied"] == summary["evaluation"]["step"] == 200
    assert (summary["updates"]["duplicated"], summary["updates"]["lost"], summary["updates"]["rolled_back"]) == (
        0,
        0,
        0,
    )
    waits = [wait_s(row) for row in ledger_rows(run_dir) if row["worker"] == "0"]
    assert waits and min(waits) >= 0.02, "the straggler of this test"


def test_resuming_a_completed_run_changes_nothing(tmp_path):
    run_dir = tmp_path / "run"
    finish(start_run(run_dir, "--steps", 150, "--no-evaluator"))
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    assert "is complete, nothing is left to do" in finish(start_run(run_dir, resume=True))
    assert_none_left(run_dir)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()} == before
