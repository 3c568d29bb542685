"""A proof that can fail: real clusters with one mistake in them end with exit code 1 and a summary that tells it."""

import json
import os
import re
import subprocess
import sys

import portpicker
import pytest

from tests.helpers.mutated_task import STEPS
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import LIMIT_S, PROJECT, summary_of

pytestmark = pytest.mark.cluster


def test_an_update_that_is_computed_again_with_another_result_fails_the_run(tmp_path):
    """The evaluator finds it, outside the cluster; every count of the ledger is right."""
    run_dir, mistake = tmp_path / "run", "three_times_the_learning_rate_is_applied"
    command = [sys.executable, "-m", "tests.helpers.mutated_task", mistake, str(run_dir)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT_S)
    assert_none_left(run_dir)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    wrong = (
        r"update \d+ of worker-0: the change of the .* is not what the equation of the update says: "
        r"the norm is 3\.000 times as large"
    )
    assert re.search(f"Error: the proof of this run fails: {wrong}", done.stderr), done.stderr
    summary = summary_of(run_dir)
    assert summary["outcome"] == "failed" and not summary["proof"]["holds"]
    problems = summary["proof"]["problems"]
    assert all(re.match(wrong, problem) for problem in problems), problems
    recomputed, updates = summary["proof"]["recomputed"], summary["updates"]
    assert recomputed["workers"].keys() == {"0"} and recomputed["of"] == STEPS
    assert recomputed["largest_deviations"]["gradient"] < 1 < recomputed["largest_deviations"]["weights"]
    assert (updates["applied"], updates["duplicated"], updates["lost"]) == (STEPS, 0, 0)
    assert list((run_dir / "metrics" / "samples").glob("disagrees-*")), "the evidence is kept"


@pytest.mark.exhaustive
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
