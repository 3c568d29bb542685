"""A manifest at work: processes with the commands and environments of the containers, and a stand-in for the operator."""

import json

import pytest

from tests.helpers.local_pods import JobSet
from tests.helpers.manifests import deployment, rendered
from tests.helpers.processes import assert_none_left

pytestmark = pytest.mark.cluster
STEPS = 20
SETTINGS = {
    "model.name": "mlp",
    "model.precision": "float32",
    "cluster.workers": 1,
    "cluster.evaluator": False,
    "training.steps": STEPS,
    "training.batch_size_per_worker": 8,
}


def test_the_pods_of_a_job_set_train_and_end_exact(tmp_path):
    job_set = JobSet(rendered("jobset", deployment(SETTINGS, data_volume=None)), tmp_path)
    run_dir = job_set.pods.claim("runs") / "mine"
    try:
        job_set.wait_for(lambda: job_set.is_over, within_s=240)
    finally:
        job_set.stop_all()
    assert_none_left(tmp_path)
    assert (job_set.outcome, job_set.restarts) == ("Completed", 0)
    updates = json.loads((run_dir / "metrics" / "training.json").read_text())["updates"]
    assert updates["scheduled"] == updates["applied"] == STEPS
    assert updates["lost"] == updates["duplicated"] == 0
