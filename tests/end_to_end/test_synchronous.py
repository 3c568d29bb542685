"""Modes in which workers make rounds: equal mathematics, and no round is short."""

import os
import signal

import numpy as np
import pytest

from tests.helpers.finished_runs import assert_ledger_is_exact, assert_slow, last_arrays, ledger_rows
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    FEW_EXAMPLES,
    MOMENTUM,
    finish,
    run,
    start,
    start_run,
    stop,
    summary_of,
    tasks,
    wait_for_training,
    wait_until_it_trains_without,
)

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory):
    """The same 3 updates by all-reduce and on the parameter server, worker 2 five times slower."""
    root = tmp_path_factory.mktemp("synchronous")
    modes = ("sync", "sync-ps")
    options = ("--steps", 3, "--seed", 3, "--straggler", "2:5x", *MOMENTUM)
    return root, {mode: run(root / mode, "--mode", mode, *options) for mode in modes}


def test_all_reduce_and_parameter_server_come_to_the_same_weights(synchronous):
    root, summaries = synchronous
    for summary in summaries.values():
        assert summary["updates"]["applied"] == 3 and summary["staleness"]["max"] == 0
        assert summary["gradients"] == {"scheduled": 9, "applied": 9, "dropped": 0, "per_update": 3}
    one, other = last_arrays(root / "sync"), last_arrays(root / "sync-ps")
    for name in ("weights", "slot_momentum"):  # but for the order in which three gradients are added
        assert np.abs(one[name] - other[name]).max() < 1e-3 * np.abs(one[name]).max()


def test_synchronous_workers_are_three_processes_that_took_the_same_batches(synchronous):
    root, summaries = synchronous
    took = [[(row["step"], row["version"], row["worker"]) for row in ledger_rows(root / mode)] for mode in summaries]
    assert took[0] == took[1] == [(str(step), str(step // 3 + 1), str(step % 3)) for step in range(9)]
    for mode, summary in summaries.items():
        pids = {task["pid"] for (kind, _), task in tasks(root / mode).items() if kind == "worker"}
        assert {worker["pid"] for worker in summary["workers"]} == pids and len(pids) == 3
        assert [worker["updates"] for worker in summary["workers"]] == [3, 3, 3]
        assert summary["evaluation"]["step"] == 3
        assert_slow(root / mode, {2: 5})


def stopped_and_resumed(process, run_dir, steps):
    """Press Ctrl-C, and check that the run drains; resume it, and check that it ends with each update applied once.

    Return the restarts of each worker before.
    """
    stop(process)
    assert_none_left(run_dir)
    stopped = summary_of(run_dir)
    assert stopped["outcome"] == "stopped" and 5 <= stopped["updates"]["applied"] < steps
    assert stopped["updates"]["scheduled"] == stopped["updates"]["applied"] == stopped["evaluation"]["step"]
    finish(start("run", "--resume", run_dir))
    assert_none_left(run_dir)
    assert_ledger_is_exact(summary_of(run_dir), steps, gradients=3)
    return [worker["restarts"] for worker in stopped["workers"]]


def test_late_gradients_of_a_backup_worker_are_dropped_and_counted(tmp_path):
    slow = (*FEW_EXAMPLES, "--straggler", "2:+0.3s", "--steps", 40, "--no-evaluator")
    summary = run(tmp_path / "run", "--mode", "sync-ps", "--backup-workers", 1, *slow)
    gradients = summary["gradients"]
    assert (gradients["applied"], gradients["per_update"]) == (80, 2) and gradients["dropped"] > 0
    assert summary["updates"]["applied"] == 40 and summary["workers"][2]["updates"] < 10


def test_a_killed_worker_of_an_all_reduce_takes_the_cluster_back_to_the_newest_snapshot_and_ctrl_c_drains(tmp_path):
    run_dir = tmp_path / "run"
    snapshots = ("--set", "checkpoints.snapshot_every_seconds=0.5")
    process = start_run(run_dir, "--mode", "sync", "--steps", 80, "--straggler", "0:+0.1s", *FEW_EXAMPLES, *snapshots)
    wait_until(lambda: list((run_dir / "snapshots").glob("step-*.safetensors")), within_s=90)
    pid = tasks(run_dir)["worker", 1]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until_it_trains_without(run_dir, {pid})
    assert stopped_and_resumed(process, run_dir, steps=80) == [1, 1, 1]


def test_a_worker_killed_while_it_waits_leaves_nothing_held_and_ctrl_c_drains(tmp_path):
    """Its graph stays on the parameter server beside that of the process that comes after it."""
    run_dir = tmp_path / "run"
    slow = (*FEW_EXAMPLES, "--straggler", "2:+0.4s", "--steps", 36)  # the others wait nearly all the time
    process = start_run(run_dir, "--mode", "sync-ps", *slow, *MOMENTUM)
    for updates in (3, 8):
        wait_for_training(run_dir, updates=updates)
        killed = tasks(run_dir)["worker", 0]["pid"]
        os.kill(killed, signal.SIGKILL)
    wait_until_it_trains_without(run_dir, {killed})
    assert stopped_and_resumed(process, run_dir, steps=36) == [2, 0, 0]
    summary = summary_of(run_dir)
    assert summary["gradients"] == {"scheduled": 108, "applied": 108, "dropped": 0, "per_update": 3}
    took = [(int(row["step"]), int(row["version"])) for row in ledger_rows(run_dir)]
    assert took == [(step, step // 3 + 1) for step in range(108)]
