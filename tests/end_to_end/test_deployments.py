"""Manifests at work: processes with the commands and environments of the containers, and a stand-in for the operator."""

import json
import os
import signal

import pytest

from ps_cluster.config.modes import Task
from tests.helpers.local_pods import Jobs, JobSet
from tests.helpers.manifests import deployment, rendered
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import rows

pytestmark = pytest.mark.cluster
SMALL = {
    "cluster.workers": 2,
    "training.batch_size_per_worker": 8,
    "checkpoints.snapshot_every_seconds": 0.5,
    "evaluation.draw_results": False,
}


@pytest.fixture
def operated(tmp_path):
    """operated(kind, operator, settings) starts a training as an operator does; what it started is gone in the end."""
    operators = []

    def start(kind, operator, settings):
        asked = deployment(SMALL | settings, data_volume=None)
        operators.append(operator(rendered(kind, asked), tmp_path))
        return operators[-1]

    yield start
    for operator in operators:
        operator.stop_all()
    assert_none_left(tmp_path)


def run_dir(operator):
    return operator.pods.claim("runs") / "mine"


def applied(operator):
    return max((row["applied"] for row in rows(run_dir(operator))[-1:]), default=0)


def pids(operator):
    return {task: process.pid for task, process in operator.running.items()}


def at_work(operator):
    """The processes of workers that have updates, by their pids."""
    return {worker["pid"] for row in rows(run_dir(operator))[-1:] for worker in row["workers"] if worker["updates"]}


def assert_exact(operator, steps):
    updates = json.loads((run_dir(operator) / "metrics" / "training.json").read_text())["updates"]
    assert updates["scheduled"] == updates["applied"] == steps
    assert updates["lost"] == updates["duplicated"] == 0


@pytest.mark.timeout(600)  # a minute and a half, and more beside other tests
def test_a_job_set_replaces_a_worker_alone_and_begins_again_without_a_parameter_server_and_ends_exact(operated):
    steps = 400
    slow = {"training.steps": steps, "cluster.straggler": "0:+0.1s;1:+0.1s"}
    job_set = operated("jobset", JobSet, slow)
    job_set.wait_for(lambda: applied(job_set) >= 40, within_s=90)
    first, workers = pids(job_set), at_work(job_set)
    os.kill(first[Task("worker", 1)], signal.SIGKILL)
    job_set.wait_for(lambda: len(at_work(job_set) - workers) == 1, within_s=60)
    now = pids(job_set)
    assert {task for task in first if now[task] != first[task]} == {Task("worker", 1)} and job_set.restarts == 0
    os.kill(now[Task("ps", 0)], signal.SIGKILL)
    job_set.wait_for(lambda: job_set.is_over, within_s=240)
    assert (job_set.outcome, job_set.restarts) == ("Completed", 1)
    assert_exact(job_set, steps)


def test_indexed_jobs_are_all_complete_when_training_has_ended(operated):
    jobs = operated("jobs", Jobs, {"training.steps": 20, "cluster.workers": 1, "cluster.evaluator": False})
    jobs.wait_for(lambda: jobs.is_over, within_s=240)
    assert set(jobs.ended.values()) == {0}
    assert_exact(jobs, 20)
