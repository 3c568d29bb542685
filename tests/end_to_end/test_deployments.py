"""A manifest at work: processes with the commands and environments of the containers, until the JobSet has succeeded."""

import json

import pytest

from tests.helpers.local_pods import LocalPods
from tests.helpers.manifests import deployment, rendered
from tests.helpers.processes import assert_none_left, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]
STEPS = 20
SETTINGS = {"model.name": "mlp", "model.precision": "float32", "training.batch_size_per_worker": 8}
SETTINGS |= {"cluster.workers": 1, "cluster.evaluator": False, "training.steps": STEPS}


def test_the_pods_of_a_job_set_train_and_end_exact(tmp_path):
    documents = rendered("jobset", deployment(SETTINGS, data_volume=None))
    ends_with = documents[-1]["spec"]["successPolicy"]["targetReplicatedJobs"]
    pods = LocalPods(documents, tmp_path)
    running = {task: pods.start(task) for task in pods.tasks}
    try:
        wait_until(lambda: all(p.poll() is not None for task, p in running.items() if task.type in ends_with), 240)
    finally:
        for process in running.values():
            process.terminate()
        codes = {str(task): process.wait(timeout=60) for task, process in running.items()}
    assert_none_left(tmp_path)
    assert codes.pop("chief-0") == 0 and set(codes.values()) <= {0, -15, 143}, pods.outputs()
    updates = json.loads((pods.claim("runs") / "mine" / "metrics" / "training.json").read_text())["updates"]
    assert updates["scheduled"] == updates["applied"] == STEPS
    assert updates["lost"] == updates["duplicated"] == 0
