"""examples/skypilot.yaml: its script starts every task of one cluster, and runs again what has failed."""

import os
import subprocess

import pytest
import yaml

from ps_cluster.config.tasks import Task
from tests.helpers.manifests import cluster_of
from tests.helpers.real_cluster import PROJECT

IPS = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
PYTHON = """#!/bin/bash
echo "$TF_CONFIG" > "$(mktemp started.XXXXXX)"
case "$TF_CONFIG" in *'"type": "'"$FAILS"'"'*) if [ ! -e failed ]; then touch failed; exit "$CODE"; fi ;; esac
"""


@pytest.fixture
def node(tmp_path):
    """node(rank, fails, code) runs the script; returns its exit code and the tasks that it started, with their clusters."""
    asked = yaml.safe_load((PROJECT / "examples" / "skypilot.yaml").read_text())
    assert asked["num_nodes"] == len(IPS)

    def run(rank, fails="nobody", code=75):
        folder = tmp_path / f"node-{rank}"
        (folder / ".venv" / "bin").mkdir(parents=True)
        python = folder / ".venv" / "bin" / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        sky = {"SKYPILOT_NODE_IPS": "\n".join(IPS), "SKYPILOT_NODE_RANK": str(rank), "FAILS": fails, "CODE": str(code)}
        ended = subprocess.run(["bash", "-c", asked["run"]], cwd=folder, env=os.environ | sky, timeout=20)
        return ended.returncode, [cluster_of(file.read_text()) for file in folder.glob("started.*")]

    return run


def test_all_nodes_together_start_every_task_of_one_cluster(node):
    ended = [node(rank) for rank in range(len(IPS))]
    assert {code for code, _ in ended} == {0}
    found = [one for _, tasks in ended for one in tasks]
    workers = {Task("worker", index) for index in range(3)}
    assert {task for _, task in found} == {Task("chief", 0), Task("ps", 0), Task("evaluator", 0)} | workers
    assert {str(topology.cluster) for topology, _ in found} == {
        "{'chief': ['10.0.0.1:2222'], 'ps': ['10.0.0.1:2223'], "
        "'worker': ['10.0.0.2:2222', '10.0.0.3:2222', '10.0.0.4:2222']}"
    }


@pytest.mark.parametrize(("code", "ends_with", "times"), [(75, 0, 2), (137, 0, 2), (2, 2, 1), (3, 3, 1)])
def test_a_task_is_run_again_unless_its_code_forbids_it(node, code, ends_with, times):
    ended, tasks = node(1, fails="worker", code=code)
    assert (ended, len(tasks)) == (ends_with, times)
