import json
import signal

import pytest

from tests.helpers.processes import assert_none_left, of_run, wait_until
from tests.helpers.real_cluster import SNAPSHOTS, finish, small, start, unhurried, wait_for_snapshots

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]


def launcher_of(root):
    return next(p for p in of_run(root) if "run" in p.cmdline() and str(root) in p.cmdline())


def test_the_trial_of_a_killed_process_continues_in_another(tmp_path):
    output = tmp_path / "out"
    slow = (*unhurried(workers=1, seconds=0.3), *SNAPSHOTS)  # a snapshot is there until the training ends
    varied = ("--vary", "optimizer.learning_rate=0.001,0.002", "--method", "random", "--trials", 1, "--workers", 1)
    command = ("sweep", *varied, "--output", output, *small(*slow, "--steps", 75))
    sweep = start(*command)
    first = output / "trials" / "0000"
    wait_for_snapshots(first)
    launcher_of(first).send_signal(signal.SIGKILL)
    log = output / "trials" / "0000.log"
    wait_until(lambda: log.exists() and log.read_text().count("run directory") >= 2)
    finish(sweep)
    assert_none_left(output)
    results = json.loads((output / "results.json").read_text())
    assert [trial["state"] for trial in results["trials"]] == ["completed"]
    summary = json.loads((first / "summary.json").read_text())
    assert summary["outcome"] == "completed" and summary["proof"]["holds"] and summary["updates"]["applied"] == 75
    assert summary["sessions"] >= 2
