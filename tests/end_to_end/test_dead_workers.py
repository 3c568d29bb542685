"""Workers that are killed, silent, frozen, added and taken away: every update is applied exactly once all the same."""

import os
import re
import signal
import time

import numpy as np
import pytest

from tests.helpers import held_modes
from tests.helpers.exhaustive import mostly
from tests.helpers.finished_runs import assert_ledger_is_exact, ledger_rows, restarts
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    ELASTIC,
    finish,
    rows,
    start,
    start_run,
    stop,
    summary_of,
    tasks,
    unhurried,
    wait_for_training,
    wait_until_it_trains_without,
    worked_since,
)

pytestmark = pytest.mark.cluster


def own_parts(folder):
    """Return options to train each worker on its own part of 60 examples, one in a step, whose loss says which it is."""
    arrays = {f"{name}_{split}": np.zeros([60, 1], np.float32) for name in "xy" for split in ("train", "test")}
    np.savez(folder / "parts.npz", **(arrays | {"y_train": 1.05 ** np.arange(60, dtype=np.float32)[:, None]}))
    unlearned = ("--set", "optimizer.rule=sgd", "--learning-rate", 1e-12, "--model", "mlp", "--batch-size", 1)
    return "--dataset", folder / "parts.npz", *unlearned, "--set", "training.sample=shard:worker"


@pytest.mark.exhaustive
def test_workers_killed_or_silent_at_a_point_of_a_step_go_on_with_their_parts_and_apply_no_step_twice(tmp_path):
    run_dir, marks = tmp_path / "run", tmp_path / "marks"
    marks.mkdir()
    # The silent one works from the beginning: whoever has had no two updates yet is given a minute to have them.
    held = held_modes.held({"before_pull": (0, 20), "applied": (1, 60), "computed": (2, 100)}, marks)
    one_at_once = ("--set", "cluster.steps_per_dispatch=1")
    # Slow enough that the silent worker is found and started again before the others have taken the last step.
    options = (*unhurried(seconds=0.2)[-2:], *one_at_once, *held_modes.MODE, *own_parts(tmp_path))
    process = start_run(run_dir, "--steps", 360, "--no-evaluator", *options, env=held)
    for point in ("before_pull", "applied", "computed"):
        wait_until(lambda: (marks / point).exists() and len((marks / point).read_text().split()) == 2)
        index, pid = map(int, (marks / point).read_text().split())
        if point != "computed":  # that one is left to the launcher, which finds that it is silent
            os.kill(pid, signal.SIGKILL)
    output = finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 360)
    assert summary["updates"]["replays_refused"] == 1, "only the step that was applied comes back and is refused"
    assert restarts(summary) == {0: 1, 1: 1, 2: 1} and summary["updates"]["rolled_back"] == 0
    (silence,) = summary["silences"]
    assert (silence["worker"], silence["pid"]) == (index, pid)
    assert f"worker-{index} (pid {pid}) is silent: no update for" in output
    assert "most recent call first" in (run_dir / "logs" / f"worker-{index}.log").read_text()
    examples = [{row["loss"] for row in ledger_rows(run_dir) if row["worker"] == str(worker)} for worker in range(3)]
    assert sum(map(len, examples)) == len(set.union(*examples)) > 50, "no example was seen by two workers"
    assert max(map(len, examples)) <= 20, "a third each, also after the kills"


def test_a_step_of_a_worker_that_is_killed_after_the_step_was_applied_is_not_applied_again(tmp_path):
    run_dir, mark = tmp_path / "run", tmp_path / "applied"
    held = held_modes.held({"applied": (1, 10)}, tmp_path)
    options = (*unhurried(workers=2), "--set", "cluster.steps_per_dispatch=1", *held_modes.MODE)
    process = start_run(run_dir, "--workers", 2, "--steps", 60, "--no-evaluator", *options, env=held)
    wait_until(lambda: mark.exists() and len(mark.read_text().split()) == 2)
    os.kill(int(mark.read_text().split()[1]), signal.SIGKILL)
    finish(process)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 60)
    assert summary["updates"]["replays_refused"] == 1 and summary["updates"]["rolled_back"] == 0
    assert restarts(summary) == {0: 0, 1: 1}


# Mode → its options, and the number of gradients in an update.
MODES = {
    "bounded": (("--max-staleness", 2), 1),
    "elastic": (ELASTIC, 1),
    "sync-diloco": (("--local-steps", 2), 2),
}


@pytest.mark.parametrize("mode", mostly(MODES, "sync-diloco"))
def test_a_mode_applies_every_update_once_as_computed_again_although_a_worker_is_killed(mode, tmp_path):
    (options, gradients), run_dir = MODES[mode], tmp_path / "run"
    size = ("--workers", 2, "--steps", 40, *unhurried(workers=2))
    process = start_run(run_dir, "--mode", mode, *options, *size)
    wait_for_training(run_dir, updates=5)
    os.kill(tasks(run_dir)["worker", 1]["pid"], signal.SIGKILL)
    finish(process)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 40, gradients=gradients)
    assert restarts(summary) == {0: 0, 1: 1} and summary["updates"]["rolled_back"] == 0
    recomputed = summary["proof"]["recomputed"]
    assert recomputed["updates"] >= 1 and {"gradient", "weights"} <= recomputed["largest_deviations"].keys()
    assert max(recomputed["largest_deviations"].values()) < 1


def scaled(run_dir, workers):
    return finish(start("scale", run_dir, "--workers", workers))


def test_training_goes_on_while_workers_are_added_killed_frozen_taken_away_and_lost_for_good(tmp_path):
    """In mode diloco, where a worker has a state of its own besides."""
    run_dir = tmp_path / "run"
    bounds = ("--workers", 2, "--min-workers", 1, "--max-workers", 3)
    diloco = ("--mode", "diloco", "--local-steps", 2)
    process = start_run(run_dir, "--steps", 100_000, "--no-evaluator", *unhurried(), *diloco, *bounds)
    wait_for_training(run_dir, updates=5)
    chief = tasks(run_dir)["chief", 0]["pid"]
    assert "started worker-2; now 3 workers" in scaled(run_dir, 3)
    wait_until(lambda: worked_since(run_dir, 2, ()) > 5)

    pids = {index: tasks(run_dir)["worker", index]["pid"] for index in (0, 1)}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    killed = time.time()
    wait_until(lambda: tasks(run_dir)["worker", 0]["pid"] != pids[0])
    second = tasks(run_dir)["worker", 0]["pid"]
    os.kill(second, signal.SIGKILL)  # while TensorFlow still waits for it
    known = {0: {pids[0], second}, 1: {pids[1]}}
    wait_until(lambda: all(worked_since(run_dir, index, known[index]) for index in known))
    between = [row for row in rows(run_dir) if killed + 0.5 < row["time"]]
    assert between[-1]["applied"] > between[0]["applied"], "training did not stop"

    frozen = tasks(run_dir)["worker", 2]["pid"]
    os.kill(frozen, signal.SIGSTOP)
    wait_until_it_trains_without(run_dir, {frozen})
    with pytest.raises(ProcessLookupError):
        os.kill(frozen, signal.SIGCONT)
    assert "stopped worker-2; other workers take over their steps; now 2 workers" in scaled(run_dir, 2)

    def killed_until_it_is_gone():
        worker = tasks(run_dir).get(("worker", 1), {})
        if not worker.get("absent") and worker["pid"] not in known[1]:
            os.kill(worker["pid"], signal.SIGKILL)
            known[1].add(worker["pid"])
        return worker.get("absent")

    wait_until(killed_until_it_is_gone)
    left = rows(run_dir)[-1]["applied"]
    wait_until(lambda: rows(run_dir)[-1]["applied"] > left + 5)
    output = stop(process)
    assert_none_left(run_dir)
    assert "worker-2 has been frozen" in output and "continues without worker-1" in output
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary)
    assert tasks(run_dir)["chief", 0]["pid"] == chief and summary["updates"]["rolled_back"] == 0
    assert summary["restarts"].keys() == {"worker-0", "worker-1", "worker-2"}, "nobody else was started again"
    assert [(row["before"], row["workers"]) for row in summary["scaled"]][:2] == [(2, 3), (3, 2)]
    logs = [(run_dir / "logs" / f"worker-{index}.log").read_text() for index in range(3)]
    assert all(log.count("the local steps begins anew: this worker has no earlier state") == 1 for log in logs)
    assert re.search(r"the local steps continues from the state after [1-9]\d* periods of this worker", logs[0])
