"""A proof that can fail: real clusters with one mistake in them end with exit code 1 and a summary that tells it."""

import json
import os
import subprocess
import sys

import portpicker
import pytest

from tests.helpers.mutated_task import STEPS
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import LIMIT_S, PROJECT, summary_of

pytestmark = pytest.mark.cluster


def test_a_mistake_in_the_engine_fails_the_run_and_is_told(tmp_path):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "tests.helpers.mutated_task", "an_update_is_applied_twice", str(run_dir)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT_S)
    assert_none_left(run_dir)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Error: the proof of this run fails: " in done.stderr
    summary = summary_of(run_dir)
    assert summary["outcome"] == "failed" and not summary["proof"]["holds"]
    told = f"version {2 * STEPS}, rows of {STEPS} updates"
    assert any(told in problem for problem in summary["proof"]["problems"]), summary["proof"]["problems"]
    assert (summary["updates"]["duplicated"], summary["updates"]["lost"]) == (STEPS, 0)


def test_an_update_without_a_row_fails_the_leader_of_tasks_that_are_started_one_by_one(tmp_path):
    cluster = {"chief": [f"127.0.0.1:{portpicker.pick_unused_port()}"]}
    own = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    command = [sys.executable, "-m", "tests.helpers.mutated_task", "an_update_has_no_row", tmp_path / "run", "alone"]
    done = subprocess.run(
        command, cwd=PROJECT, env=os.environ | {"TF_CONFIG": own}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert_none_left(tmp_path)
    assert done.returncode == 4, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Error: the proof of this run fails: " in done.stderr
    summary = summary_of(tmp_path / "run")
    assert summary["outcome"] == "failed" and not summary["proof"]["holds"] and summary["updates"]["lost"] == 1
