"""A cluster that nobody launches: every task is started by itself, with TF_CONFIG, as on machines of their own."""

import json
import signal

import portpicker
import pytest

from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import finish, rows, small, start, unhurried, wait_for_training

pytestmark = pytest.mark.cluster
CHIEF, SERVERS = ("chief", 0), (("ps", 0), ("worker", 0), ("worker", 1))


@pytest.fixture
def machine(tmp_path):
    """machine(type, index, *options) starts the task in a run directory of its own; `machine.folder(...)` is that."""
    cluster: dict[str, list[str]] = {}
    for kind, _ in (CHIEF, *SERVERS):
        cluster.setdefault(kind, []).append(f"127.0.0.1:{portpicker.pick_unused_port()}")
    started = []

    def folder(kind, index):
        return tmp_path / f"{kind}-{index}"

    def call(kind, index, *options):
        tf_config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        process = start("task", "--run-dir", folder(kind, index), *small(*options), env={"TF_CONFIG": tf_config})
        started.append(process)
        return process

    call.folder = folder
    yield call
    for process in started:
        process.kill()
        process.communicate()
    assert_none_left(tmp_path)


def test_tasks_that_are_started_by_themselves_train_together_and_a_worker_may_be_started_again(machine):
    run_dir, steps = machine.folder(*CHIEF), ("--steps", 100_000, *unhurried(workers=2))  # more than it waits for
    servers = {task: machine(*task, *steps) for task in SERVERS}
    chief = machine(*CHIEF, *steps)
    wait_for_training(run_dir, updates=100)
    first = servers["worker", 1].pid
    servers["worker", 1].kill()
    servers["worker", 1] = machine("worker", 1, *steps)
    everybody = {(0, servers["worker", 0].pid), (1, first), (1, servers["worker", 1].pid)}
    wait_until(lambda: _workers(rows(run_dir)[-1]) == everybody, within_s=90)
    chief.send_signal(signal.SIGINT)
    finish(chief)
    assert not (run_dir / ".lock").exists()
    result = json.loads((run_dir / "metrics" / "training.json").read_text())
    updates = result["updates"]
    assert updates["scheduled"] == updates["applied"] > 100 and updates["lost"] == updates["duplicated"] == 0
    assert _workers(result) == everybody
    assert all(process.poll() is None for process in servers.values()), "they serve until they are stopped"
    for process in servers.values():
        process.terminate()
    assert {process.wait(timeout=20) for process in servers.values()} <= {-signal.SIGTERM, 128 + signal.SIGTERM}
    assert f"step {updates['applied']:,}: test accuracy" in finish(
        start("evaluate", "--once", "--checkpoint-dir", run_dir)
    )
    refused = machine(*CHIEF, *unhurried(workers=2), "--steps", 10, "--resume")
    _, errors = refused.communicate(timeout=60)
    assert refused.returncode == 2 and "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("Error: training.steps, training.epochs: 10 updates in all")


def _workers(counted):
    return {(worker["index"], worker["pid"]) for worker in counted["workers"]}
