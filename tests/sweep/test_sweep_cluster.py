import json
import signal

import pytest

from tests.helpers.processes import assert_none_left, of_run, wait_until
from tests.helpers.real_cluster import finish, rows, small, start, wait_for_snapshots

pytestmark = pytest.mark.cluster


def launcher_of(root):
    return next(p for p in of_run(root) if "run" in p.cmdline() and str(root) in p.cmdline())


def test_the_trial_of_a_killed_process_goes_on_in_another_and_the_sweep_after_a_stop(tmp_path):
    output = tmp_path / "out"
    slow = ("--batch-size", 8, "--set", "cluster.straggler=0:+0.05s", "--set", "checkpoints.snapshot_every_seconds=0.5")
    varied = ("--vary", "optimizer.learning_rate=0.001,0.002", "--method", "grid", "--workers", 2)
    command = ("sweep", *varied, "--output", output, *small(*slow, "--steps", 120))
    sweep = start(*command)
    first, second = (output / "trials" / name for name in ("0000", "0001"))
    try:
        wait_for_snapshots(first)
        launcher_of(first).send_signal(signal.SIGKILL)
        log = output / "trials" / "0000.log"
        wait_until(lambda: log.exists() and log.read_text().count("run directory") >= 2, within_s=60)
        wait_until(lambda: rows(first)[-1]["phase"] == "training", within_s=90)
        sweep.send_signal(signal.SIGTERM)
        finish(sweep, expected=143)
    finally:
        sweep.kill()
        sweep.communicate()
    assert_none_left(output)
    finish(start(*command))
    assert_none_left(output)
    results = json.loads((output / "results.json").read_text())
    assert [trial["state"] for trial in results["trials"]] == ["completed", "completed"]
    for root in (first, second):
        summary = json.loads((root / "summary.json").read_text())
        assert summary["outcome"] == "completed" and summary["proof"]["holds"] and summary["updates"]["applied"] == 120
    assert json.loads((first / "summary.json").read_text())["sessions"] >= 2
