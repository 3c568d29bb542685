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


@pytest.mark.parametrize(
    ("mistake", "told", "counts"),
    [
        ("applies_twice", f"version {2 * STEPS}, rows of {STEPS} updates", {"duplicated": STEPS, "lost": 0}),
        ("forgets_a_step", f"{STEPS} updates were handed out, {STEPS - 1} were applied", {"lost": 1}),
    ],
)
def test_a_mistake_in_the_engine_fails_the_run_and_is_told(tmp_path, mistake, told, counts):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "tests.helpers.mutated_task", mistake, str(run_dir)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT_S)
    assert_none_left(run_dir)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Error: the ledger is not exact: " in done.stderr
    summary = summary_of(run_dir)
    assert summary["outcome"] == "failed" and not summary["proof"]["holds"]
    assert any(told in problem for problem in summary["proof"]["problems"]), summary["proof"]["problems"]
    assert {name: summary["updates"][name] for name in counts} == counts


def test_an_update_without_a_row_fails_the_leader_of_tasks_that_are_started_one_by_one(tmp_path):
    tasks = ("chief", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)
    cluster: dict[str, list[str]] = {}
    for kind, _ in tasks:
        cluster.setdefault(kind, []).append(f"127.0.0.1:{portpicker.pick_unused_port()}")
    command = [sys.executable, "-m", "tests.helpers.mutated_task", "applies_without_a_row"]
    started = []
    try:
        for kind, index in tasks:
            own = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
            process = subprocess.Popen(
                [*command, tmp_path / f"{kind}-{index}", "alone"], cwd=PROJECT, env=os.environ | {"TF_CONFIG": own},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            started.append(process)
        told, errors = started[0].communicate(timeout=LIMIT_S)
        assert started[0].returncode == 1, told[-3000:] + errors[-3000:]
        assert "Error: the ledger is not exact: " in errors
        summary = summary_of(tmp_path / "chief-0")
        assert summary["outcome"] == "failed" and not summary["proof"]["holds"] and summary["updates"]["lost"] == 1
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert_none_left(tmp_path)
