"""Every mode on real processes, on the embedded set: equal mathematics where they promise it, and the same services."""

import csv
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.training import checkpoints
from tests.helpers.clocks import unseen
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import SMALL, finish, start, start_run, summary_of, tasks, wait_for_training

pytestmark = pytest.mark.cluster

# Adam divides by the gradient's size and so enlarges its rounding; that of plain momentum stays small for a few updates.
MOMENTUM = ("--set", "optimizer.rule=momentum", "--set", "optimizer.learning_rate=0.02")
TWO_AT_ONCE = ("--set", "cluster.steps_per_dispatch=2")
ELASTIC = ("--set", "optimizer.rule=sgd", "--set", "optimizer.learning_rate=0.05")


def run(run_dir, *options):
    finish(start_run(run_dir, *options))
    assert_none_left(run_dir)
    return summary_of(run_dir)


def last_arrays(run_dir):
    folder = run_dir / "checkpoints"
    return checkpoints.load(checkpoints.path_of(folder, checkpoints.steps(folder)[-1])).arrays


def ledger_rows(run_dir):
    return list(csv.DictReader((run_dir / "metrics" / "updates.csv").open()))


def wait_s(row):
    """How long the worker was slow on purpose."""
    return float(row["pushed_time"]) - float(row["computed_time"])


def slowness(run_dir):
    """By worker: the median of the time from pull to push over that of the computation alone."""
    ratios = {}
    for row in ledger_rows(run_dir):
        pulled, computed, pushed = (float(row[f"{name}_time"]) for name in ("pulled", "computed", "pushed"))
        ratios.setdefault(int(row["worker"]), []).append((pushed - pulled) / (computed - pulled))
    return {worker: round(float(np.median(found)), 1) for worker, found in sorted(ratios.items())}


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
        assert slowness(root / mode) == pytest.approx({0: 1, 1: 1, 2: 5}, abs=0.3)


def test_a_bound_of_zero_with_three_workers_is_the_sequential_mathematics(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    summary = run(
        run_dir, "--mode", "bounded", "--max-staleness", 0, "--steps", 9, "--no-evaluator", *TWO_AT_ONCE, *MOMENTUM
    )
    assert summary["staleness"]["histogram"] == {"0": 9} and summary["worker_processes"] == 3
    order = [int(row["step"]) for row in sorted(ledger_rows(run_dir), key=lambda row: int(row["version"]))]
    own = last_arrays(run_dir)["weights"]
    same, other = (one_after_the_other(run_dir, steps, monkeypatch) for steps in (order, order[::-1]))
    # Rounding grows from update to update, so it is held against what another order of the same steps comes to.
    assert np.abs(own - same).max() < 0.02 * np.abs(own - other).max()


def one_after_the_other(run_dir, step_ids, monkeypatch):
    """The weights after these steps, run in this process as mode single would."""
    import tensorflow as tf

    from ps_cluster.config import load_config
    from ps_cluster.data.packed import load_packed
    from ps_cluster.training.ledger import NOBODY
    from ps_cluster.training.session import LOCAL_DEVICE, build
    from ps_cluster.training.worker import steps_function

    alone = {"training.mode": "single", "training.max_staleness": None}
    config = load_config(run_dir / "config.yaml").with_values(alone)
    dataset = load_packed(Path(json.loads((run_dir / "dataset.json").read_text())["directory"]))
    store, compute = build(config, dataset, [LOCAL_DEVICE], LOCAL_DEVICE)
    monkeypatch.chdir(run_dir / "tasks" / "worker-0")
    steps_function(store, compute, config)(tf.constant(step_ids, tf.int64), tf.constant(NOBODY, tf.float64))
    arrays, _ = store.snapshot([0])
    return arrays["weights"]


def test_the_bound_holds_with_a_straggler_that_would_break_it(tmp_path):
    slow = ("--straggler", "2:5x", "--steps", 150, "--no-evaluator")
    free = run(tmp_path / "async", *slow)
    bounded = run(tmp_path / "bounded", "--mode", "bounded", "--max-staleness", 2, *slow)
    for mode in ("async", "bounded"):
        assert slowness(tmp_path / mode) == pytest.approx({0: 1, 1: 1, 2: 5}, abs=0.3)
    assert free["staleness"]["max"] > 2 >= bounded["staleness"]["max"]
    assert bounded["updates"]["applied"] == 150 and bounded["updates"]["lost"] == 0
    assert bounded["straggler"] == "2:5x" and bounded["workers"][2]["updates"] < bounded["workers"][0]["updates"]


def test_clocks_lag_no_more_than_the_bound_with_a_straggler_that_would_leave_them_behind(tmp_path):
    run_dir = tmp_path / "run"
    options = ("--straggler", "2:+0.1s", "--steps", 61, "--no-evaluator")
    summary = run(run_dir, "--mode", "bounded", "--max-clock-lag", 1, *options, *TWO_AT_ONCE)
    assert summary["updates"]["applied"] == 61 and summary["updates"]["lost"] == 0
    rows = update_columns(run_dir)
    assert not unseen(rows, 1) and unseen(rows, 0), "the quick ones are one step ahead, and never two"
    assert summary["staleness"]["max"] > 1, "versions are not what is bounded"
    assert all(float(row["pushed_time"]) < float(row["entered_time"]) for row in ledger_rows(run_dir)), "none holds a place"
    last = np.sort([float(row["applied_time"]) for row in ledger_rows(run_dir)])
    assert np.diff(last).max() < 5, "at the end nobody waits for a worker that has no step left"


def test_a_clock_lag_of_zero_is_bulk_synchronous(tmp_path):
    run_dir = tmp_path / "run"
    run(run_dir, "--mode", "bounded", "--max-clock-lag", 0, "--steps", 60, "--no-evaluator")
    rows = update_columns(run_dir)
    assert not unseen(rows, 0)
    in_rounds = rows["worker"][np.argsort(rows["version"])].reshape(20, 3)
    assert (np.sort(in_rounds) == [0, 1, 2]).all(), "every three updates are one of each worker"


def update_columns(run_dir):
    """The columns of the ledger that say who was how stale, as vectors."""
    names = ("worker", "version", "staleness")
    return {name: np.array([int(row[name]) for row in ledger_rows(run_dir)]) for name in names}


def test_late_gradients_of_a_backup_worker_are_dropped_and_counted(tmp_path):
    slow = ("--straggler", "2:+0.3s", "--steps", 40, "--no-evaluator")
    summary = run(tmp_path / "run", "--mode", "sync-ps", "--backup-workers", 1, *slow)
    gradients = summary["gradients"]
    assert (gradients["applied"], gradients["per_update"]) == (80, 2) and gradients["dropped"] > 0
    assert summary["updates"]["applied"] == 40 and summary["workers"][2]["updates"] < 10


def test_three_workers_are_as_stale_as_ten_would_be(tmp_path):
    options = ("--simulate-workers", 10, "--staleness-method", "dc_adaptive", "--steps", 300, "--no-evaluator")
    staleness = run(tmp_path / "run", *options, *MOMENTUM)["staleness"]
    assert 7.5 < staleness["mean"] < 9.5 and staleness["histogram"]["7"] > 0


@pytest.mark.parametrize(
    "options",
    [("sync",), ("sync-ps",), ("bounded",), ("bounded", "--max-clock-lag", 0), ("single",), ("elastic", *ELASTIC)],
    ids=lambda options: "".join(str(option) for option in options[:3]),
)
def test_ctrl_c_drains_and_a_resumed_run_completes(tmp_path, options):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--steps", 200, "--straggler", "0:+0.02s", "--mode", *options)
    wait_for_training(run_dir, updates=5)
    process.send_signal(signal.SIGINT)
    finish(process)
    assert_none_left(run_dir)
    stopped = summary_of(run_dir)
    assert stopped["outcome"] == "stopped" and 5 <= stopped["updates"]["applied"] < 200
    assert stopped["updates"]["scheduled"] == stopped["updates"]["applied"] == stopped["evaluation"]["step"]
    finish(start_run(run_dir, resume=True))
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert summary["outcome"] == "completed" and summary["updates"]["applied"] == summary["evaluation"]["step"] == 200
    assert (summary["updates"]["duplicated"], summary["updates"]["lost"], summary["updates"]["rolled_back"]) == (
        0,
        0,
        0,
    )
    waits = [wait_s(row) for row in ledger_rows(run_dir) if row["worker"] == "0"]
    assert waits and min(waits) >= 0.02, "the straggler of this test"


def test_a_killed_worker_of_an_all_reduce_takes_the_cluster_back_to_the_newest_snapshot(tmp_path):
    run_dir = tmp_path / "run"
    snapshots = ("--set", "checkpoints.snapshot_every_seconds=0.5")
    process = start_run(
        run_dir, "--mode", "sync", "--steps", 200, "--no-evaluator", "--straggler", "0:+0.02s", *snapshots
    )
    wait_until(lambda: list((run_dir / "snapshots").glob("step-*.npz")), within_s=90)
    os.kill(tasks(run_dir)["worker", 1]["pid"], signal.SIGKILL)
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert summary["outcome"] == "completed" and summary["updates"]["applied"] == 200
    assert summary["updates"]["duplicated"] == summary["updates"]["lost"] == 0
    assert [worker["restarts"] for worker in summary["workers"]] == [1, 1, 1]


def test_a_killed_worker_of_synchronous_rounds_comes_back_and_no_round_is_short(tmp_path):
    run_dir = tmp_path / "run"
    process = start_run(run_dir, "--mode", "sync-ps", "--steps", 200, "--no-evaluator", "--straggler", "0:+0.02s")
    wait_for_training(run_dir, updates=10)
    os.kill(tasks(run_dir)["worker", 1]["pid"], signal.SIGKILL)
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert summary["gradients"]["applied"] == 600 and summary["updates"]["applied"] == 200
    assert [worker["updates"] for worker in summary["workers"]] == [200, 200, 200]


def test_a_worker_killed_while_it_waits_leaves_nothing_held(tmp_path):
    """Its graph stays on the parameter server beside that of the process that comes after it."""
    run_dir = tmp_path / "run"
    slow = ("--straggler", "2:+0.5s", "--steps", 30, "--no-evaluator")  # the others wait nearly all the time
    process = start_run(run_dir, "--mode", "sync-ps", *slow, *MOMENTUM)
    for updates in (3, 10):
        wait_for_training(run_dir, updates=updates)
        os.kill(tasks(run_dir)["worker", 0]["pid"], signal.SIGKILL)
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert summary["gradients"] == {"scheduled": 90, "applied": 90, "dropped": 0, "per_update": 3}
    assert summary["updates"]["applied"] == 30 and summary["updates"]["duplicated"] == 0
    assert [worker["restarts"] for worker in summary["workers"]] == [2, 0, 0]
    took = [(int(row["step"]), int(row["version"])) for row in ledger_rows(run_dir)]
    assert took == [(step, step // 3 + 1) for step in range(90)]


def test_compare_trains_what_is_missing_and_writes_the_report(tmp_path):
    output = tmp_path / "comparison"
    arms = "--modes async,single --seeds 1 --steps 30 --batches same_per_update"
    options = (*arms.split(), "--output", output, *SMALL)
    finish(start("compare", *options))
    roots = sorted((output / "runs").iterdir())
    assert len(roots) == 2
    for root in roots:
        assert_none_left(root)
    summaries = {root: (root / "summary.json").stat().st_mtime_ns for root in roots}
    (roots[0] / "summary.json").unlink()  # as if it had been interrupted
    printed = finish(start("compare", *options))
    assert "generated images" in printed.lower() and "async" in printed
    trained = [root for root in roots if (root / "summary.json").stat().st_mtime_ns != summaries[root]]
    assert trained == [roots[0]], "finished runs are taken as they are"
    page = (output / "report.html").read_text()
    assert "<svg" in page or "data:image/" in page
    rows = list(csv.DictReader((output / "rows.csv").open()))
    assert len(rows) == 2 and len(json.loads((output / "report.json").read_text())["rows"]) == 2
