"""Workers that are killed: every update is applied exactly once all the same."""

import os
import signal
import time

import numpy as np
import pytest

from tests.helpers import held_modes
from tests.helpers.finished_runs import assert_ledger_is_exact, ledger_rows, restarts
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    finish,
    rows,
    start_run,
    stop,
    summary_of,
    tasks,
    unhurried,
    wait_for_training,
    worked_since,
)

pytestmark = pytest.mark.cluster


def own_parts(folder):
    """Return options to train each worker on its own part of 60 examples, one in a step, whose loss says which it is."""
    arrays = {f"{name}_{split}": np.zeros([60, 1], np.float32) for name in "xy" for split in ("train", "test")}
    np.savez(folder / "parts.npz", **(arrays | {"y_train": 1.05 ** np.arange(60, dtype=np.float32)[:, None]}))
    unlearned = ("--set", "optimizer.rule=sgd", "--learning-rate", 1e-12, "--model", "mlp", "--batch-size", 1)
    return "--dataset", folder / "parts.npz", *unlearned, "--set", "training.sample=shard:worker"


def test_workers_killed_at_each_point_of_a_step_go_on_with_their_parts_and_apply_no_step_twice(tmp_path):
    run_dir, marks = tmp_path / "run", tmp_path / "marks"
    marks.mkdir()
    held = held_modes.held({"before_pull": 20, "computed": 80, "applied": 140}, marks)
    one_at_once = ("--set", "cluster.steps_per_dispatch=1")
    mode = ("--mode", held_modes.mode("asynchronous"))
    options = (*unhurried()[-2:], *one_at_once, *mode, *own_parts(tmp_path))
    process = start_run(run_dir, "--steps", 360, "--no-evaluator", *options, env=held)
    killed = {0: 0, 1: 0, 2: 0}
    for point in ("before_pull", "computed", "applied"):
        wait_until(lambda: (marks / point).exists() and len((marks / point).read_text().split()) == 2, within_s=90)
        index, pid = map(int, (marks / point).read_text().split())
        os.kill(pid, signal.SIGKILL)
        killed[index] += 1
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 360)
    assert summary["updates"]["replays_refused"] == 1, "only the step that was applied comes back and is refused"
    assert restarts(summary) == killed and summary["updates"]["rolled_back"] == 0
    examples = [{row["loss"] for row in ledger_rows(run_dir) if row["worker"] == str(worker)} for worker in range(3)]
    assert sum(map(len, examples)) == len(set.union(*examples)) > 50, "no example was seen by two workers"
    assert max(map(len, examples)) <= 20, "a third each, also after the kills"


def test_killed_workers_take_part_again_while_the_others_go_on(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator", *unhurried())
    wait_for_training(run_dir, updates=30)
    pid = tasks(run_dir)["worker", 1]["pid"]
    os.kill(pid, signal.SIGKILL)
    killed = time.time()
    wait_until(lambda: worked_since(run_dir, 1, {pid}) > 0, within_s=30)
    between = [row for row in rows(run_dir) if killed + 0.5 < row["time"]]
    assert between[-1]["applied"] > between[0]["applied"], "training did not stop"

    pids = {index: tasks(run_dir)["worker", index]["pid"] for index in (0, 1)}  # two at once, and one again
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: tasks(run_dir)["worker", 0]["pid"] != pids[0], within_s=10)
    second = tasks(run_dir)["worker", 0]["pid"]
    os.kill(second, signal.SIGKILL)  # while TensorFlow still waits for it
    known = {0: {pids[0], second}, 1: {pid, pids[1]}}
    wait_until(lambda: all(worked_since(run_dir, index, known[index]) for index in known), within_s=60)
    stop(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary)
    assert summary["updates"]["rolled_back"] == 0 and restarts(summary) == {0: 2, 1: 2, 2: 0}


def test_training_goes_on_without_the_worker_that_dies_every_time(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator", *unhurried())
    wait_for_training(run_dir, updates=30)
    killed = set()

    def killed_until_it_is_gone():
        worker = tasks(run_dir).get(("worker", 1), {})
        if not worker.get("absent") and worker["pid"] not in killed:
            os.kill(worker["pid"], signal.SIGKILL)
            killed.add(worker["pid"])
        return worker.get("absent")

    wait_until(killed_until_it_is_gone, within_s=60)
    began, chief = rows(run_dir)[-1]["applied"], tasks(run_dir)["chief", 0]["pid"]
    wait_until(lambda: rows(run_dir)[-1]["applied"] > began + 100, within_s=60)
    other = tasks(run_dir)["worker", 2]["pid"]
    os.kill(other, signal.SIGKILL)  # another one is taken back all the same
    old = {other} | {w["pid"] for w in rows(run_dir)[-1]["workers"]}
    wait_until(lambda: worked_since(run_dir, 2, old), within_s=60)
    output = stop(process)
    assert_none_left(run_dir)
    assert "goes on without worker-1" in output and len(killed) == 6
    assert tasks(run_dir)["chief", 0]["pid"] == chief, "nobody else was started again"
    updates = summary_of(run_dir)["updates"]
    assert updates["scheduled"] == updates["applied"] and updates["duplicated"] == updates["lost"] == 0
