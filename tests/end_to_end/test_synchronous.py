"""Modes in which workers make rounds. That their mathematics is that of one process is in tests/training.

The run with a backup worker, whose late gradients are dropped, is that of the installed program: tests/test_package.py.
"""

import os
import signal
import time

import pytest

from tests.helpers.finished_runs import assert_ledger_is_exact
from tests.helpers.processes import assert_none_left, of_run
from tests.helpers.real_cluster import (
    rows,
    start_run,
    stop,
    summary_of,
    tasks,
    unhurried,
    wait_for_snapshots,
    wait_for_training,
    wait_until_it_trains_without,
)

pytestmark = pytest.mark.cluster


def test_an_all_reduce_survives_a_frozen_machine_and_a_killed_worker_and_ctrl_c_drains(tmp_path):
    run_dir = tmp_path / "run"
    frozen_s = 14.0  # longer than the launcher lets a process be stopped, and than TensorFlow waits for a heartbeat
    options = ("--workers", 2, "--steps", 100_000, "--no-evaluator", *unhurried(workers=2, seconds=0.1))
    process = start_run(run_dir, "--mode", "sync", *options, "--set", "checkpoints.snapshot_every_seconds=0.5")
    wait_for_training(run_dir, updates=5)
    others = [one for one in of_run(run_dir) if one.pid != process.pid]
    pids = {task: row["pid"] for task, row in tasks(run_dir).items()}
    for other in others:
        other.suspend()
    time.sleep(1.0)  # the launcher has seen it
    process.send_signal(signal.SIGSTOP)
    time.sleep(frozen_s)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    for other in others:
        other.resume()
    seen = rows(run_dir)[-1]["applied"]
    wait_for_training(run_dir, updates=seen + 5)
    assert {task: row["pid"] for task, row in tasks(run_dir).items()} == pids
    assert (run_dir / "logs" / "launcher.log").read_text() == "", "it goes on as if nothing had been"

    wait_for_snapshots(run_dir)
    os.kill(pids["worker", 1], signal.SIGKILL)
    wait_until_it_trains_without(run_dir, {pids["worker", 1]})
    stop(process)
    assert_none_left(run_dir)
    stopped = summary_of(run_dir)
    assert_ledger_is_exact(stopped, gradients=2)
    assert [worker["restarts"] for worker in stopped["workers"]] == [1, 1], "both began again from the newest snapshot"
