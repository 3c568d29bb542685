"""Bounds of mode bounded on real processes, and the staleness of more workers than there are."""

import json
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.training.modes.waiting import LEASE_S
from tests.helpers.clocks import unseen
from tests.helpers.finished_runs import assert_slow, last_arrays, ledger_rows, update_columns
from tests.helpers.real_cluster import FEW_EXAMPLES, MOMENTUM, TWO_AT_ONCE, run

pytestmark = pytest.mark.cluster


def test_a_bound_of_zero_with_three_workers_is_the_sequential_mathematics(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    summary = run(
        run_dir, "--mode", "bounded", "--max-staleness", 0, "--steps", 6, "--no-evaluator", *TWO_AT_ONCE, *MOMENTUM
    )
    assert summary["staleness"]["histogram"] == {"0": 6} and summary["worker_processes"] == 3
    order = [int(row["step"]) for row in sorted(ledger_rows(run_dir), key=lambda row: int(row["version"]))]
    own = last_arrays(run_dir)["weights"]
    same, other = (one_after_the_other(run_dir, steps, monkeypatch) for steps in (order, order[::-1]))
    # Rounding grows from update to update (of 9 it once came to 0.02, of 6 to 5e-6), so it is held against what another order
    # of the same steps comes to.
    assert np.abs(own - same).max() < 0.02 * np.abs(own - other).max()


def one_after_the_other(run_dir, step_ids, monkeypatch):
    """The weights after these steps, run in this process as mode single would."""
    import tensorflow as tf

    from ps_cluster.config import load_config
    from ps_cluster.data.packed import load_packed
    from ps_cluster.runs.ledger import NOBODY
    from ps_cluster.training.session import LOCAL_DEVICE, build
    from ps_cluster.training.worker import steps_function

    alone = {"mode.name": "single"}
    config = load_config(run_dir / "config.yaml").with_values(alone)
    dataset = load_packed(Path(json.loads((run_dir / "dataset.json").read_text())["directory"]))
    store, compute = build(config, dataset, [LOCAL_DEVICE], LOCAL_DEVICE)
    monkeypatch.chdir(run_dir / "tasks" / "worker-0")
    steps_function(store, compute, config)(tf.constant(step_ids, tf.int64), tf.constant(NOBODY, tf.float64))
    arrays, _ = store.snapshot([0], closed=0)
    return arrays["weights"]


def test_the_bound_holds_with_a_straggler_whose_gradients_would_be_staler(tmp_path):
    slow = ("--straggler", "2:5x", "--steps", 100, "--no-evaluator")
    bounded = run(tmp_path / "run", "--mode", "bounded", "--max-staleness", 2, *slow)
    assert_slow(tmp_path / "run", {2: 5})
    assert bounded["staleness"]["max"] == 2 and bounded["updates"]["applied"] == 100
    assert bounded["straggler"] == "2:5x" and bounded["workers"][2]["updates"] < bounded["workers"][0]["updates"]


def test_clocks_lag_no_more_than_the_bound_with_a_straggler_that_would_leave_them_behind(tmp_path):
    run_dir = tmp_path / "run"
    options = (*FEW_EXAMPLES, "--straggler", "2:+0.1s", "--steps", 61, "--no-evaluator")
    summary = run(run_dir, "--mode", "bounded", "--max-clock-lag", 1, *options, *TWO_AT_ONCE)
    assert summary["updates"]["applied"] == 61 and summary["updates"]["lost"] == 0
    rows = update_columns(run_dir)
    assert not unseen(rows, 1) and unseen(rows, 0), "the quick ones are one step ahead, and never two"
    assert summary["staleness"]["max"] > 1, "versions are not what is bounded"
    assert all(float(row["pushed_time"]) < float(row["entered_time"]) for row in ledger_rows(run_dir)), (
        "none holds a place"
    )
    last = np.sort([float(row["applied_time"]) for row in ledger_rows(run_dir)])
    assert np.diff(last)[-10:].max() < LEASE_S / 2, "at the end nobody waits for a worker that has no step left"


def test_three_workers_are_as_stale_as_ten_would_be(tmp_path):
    options = ("--simulate-workers", 10, "--staleness-method", "dc_adaptive", "--steps", 300, "--no-evaluator")
    staleness = run(tmp_path / "run", *options, *MOMENTUM)["staleness"]
    assert 7.5 < staleness["mean"] < 9.5 and staleness["histogram"]["7"] > 0
