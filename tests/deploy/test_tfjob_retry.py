"""The script in the containers of a TFJob: it runs a task again, and tells the operator only what that understands."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ps_cluster.tools.deploy import kinds
from tests.helpers.manifests import deployment, pods_of, rendered
from tests.helpers.processes import assert_none_left, wait_until

SCRIPT = Path(kinds.__file__).parent / "templates" / "tfjob_retry.sh"
SHELLS = [name for name in ("dash", "bash") if shutil.which(name)]  # that of the image is dash
# Ends with the next code of its plan, at once; at "stay" it stays until SIGTERM, and then ends with the code after that.
TASK = """#!/bin/bash
trap 'echo TERM >> "$1/heard"; stopped=yes' TERM
echo start >> "$1/starts"
read -r -a plan < "$1/plan"
number=$(wc -l < "$1/starts")
if [ "${plan[number - 1]}" = stay ]; then
    while [ -z "$stopped" ]; do sleep 0.02; done
    sleep 0.2 # a leader drains
    number=$((number + 1))
fi
exit "${plan[number - 1]}"
"""


@pytest.fixture(params=SHELLS)
def retried(request, tmp_path):
    """retried(plan, restarts) starts the script with a task of that plan."""
    task = tmp_path / "task"
    task.write_text(TASK)
    task.chmod(0o755)

    def start(plan, restarts):
        (tmp_path / "plan").write_text(f"{plan}\n")
        return subprocess.Popen(
            [request.param, SCRIPT, str(restarts), task, tmp_path], stdout=subprocess.PIPE, text=True
        )

    yield start
    assert_none_left(tmp_path)


def lines(folder, name):
    return len((folder / name).read_text().splitlines()) if (folder / name).exists() else 0


def does_the_operator_replace_the_pod(code):
    """As `IsRetryableExitCode` of training-operator 1.9. Any other code than 0 is the end of the TFJob."""
    return code >= 128


@pytest.mark.parametrize("code", [0, 2, 3])
def test_what_is_done_or_must_not_be_run_again_ends_the_container_with_its_own_code(retried, tmp_path, code):
    assert retried(f"{code} 0", 5).wait(timeout=20) == code and not does_the_operator_replace_the_pod(code)
    assert lines(tmp_path, "starts") == 1


def test_a_failure_is_tried_again_in_the_container(retried, tmp_path):
    process = retried("75 137 0", 2)
    output, _ = process.communicate(timeout=20)
    assert (process.returncode, lines(tmp_path, "starts")) == (0, 3)
    assert "exit code 75" in output and "exit code 137" in output


@pytest.mark.parametrize(("restarts", "starts"), [(0, 1), (1, 2)])
def test_too_many_failures_are_the_end_for_the_operator_too(retried, tmp_path, restarts, starts):
    code = retried("137 137 137", restarts).wait(timeout=20)
    assert not does_the_operator_replace_the_pod(code) and code != 0
    assert lines(tmp_path, "starts") == starts


@pytest.mark.parametrize("own", [75, 143])
def test_a_container_that_kubernetes_stops_hands_the_signal_on_once_and_has_its_pod_replaced(retried, tmp_path, own):
    process = retried(f"stay {own}", 5)
    wait_until(lambda: lines(tmp_path, "starts") == 1)
    process.terminate()
    assert does_the_operator_replace_the_pod(process.wait(timeout=20))
    assert (lines(tmp_path, "heard"), lines(tmp_path, "starts")) == (1, 1)


@pytest.mark.parametrize("own", [0, 3])
def test_a_task_that_is_done_when_it_is_stopped_is_done(retried, tmp_path, own):
    process = retried(f"stay {own}", 5)
    wait_until(lambda: lines(tmp_path, "starts") == 1)
    process.terminate()
    assert process.wait(timeout=20) == own and lines(tmp_path, "heard") == 1


def test_nothing_is_started_after_a_stop_that_came_between_two_tries(retried, tmp_path):
    process = retried("75 stay 0", 5)
    wait_until(lambda: lines(tmp_path, "starts") == 1)
    time.sleep(0.3)  # the task has ended, the script sleeps
    process.terminate()
    assert does_the_operator_replace_the_pod(process.wait(timeout=20)) and lines(tmp_path, "starts") == 1


def test_the_script_is_sound_for_shellcheck():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run([shellcheck, "--shell=sh", SCRIPT], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_every_container_of_a_tf_job_runs_its_task_by_the_script_of_the_config_map():
    documents = rendered("tfjob", deployment())
    (config_map,) = [one for one in documents if one["kind"] == "ConfigMap"]
    assert config_map["data"]["retry.sh"] == SCRIPT.read_text()
    replicas = documents[-1]["spec"]["tfReplicaSpecs"]
    assert {one["restartPolicy"] for one in replicas.values()} == {"ExitCode"}
    for pods in pods_of(documents):
        assert pods.container["command"] == ["sh", "/etc/ps-cluster/retry.sh", "20", *pods.command]
