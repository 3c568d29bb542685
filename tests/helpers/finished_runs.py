"""Read a run that has ended: its summary, its ledger, its weights."""

import csv

import numpy as np

from ps_cluster.runs import checkpoints


def last_arrays(run_dir):
    folder = run_dir / "checkpoints"
    return checkpoints.load(checkpoints.path_of(folder, checkpoints.steps(folder)[-1])).arrays


def ledger_rows(run_dir):
    return list(csv.DictReader((run_dir / "metrics" / "updates.csv").read_text().splitlines()))


def update_columns(run_dir, *names):
    """Return columns of the ledger as vectors, by default worker, version and staleness."""
    names = names or ("worker", "version", "staleness")
    return {name: np.array([int(row[name]) for row in ledger_rows(run_dir)]) for name in names}


def wait_s(row):
    """Return the seconds for which the worker was slow on purpose."""
    return float(row["pushed_time"]) - float(row["computed_time"])


def restarts(summary):
    return {worker["index"]: worker["restarts"] for worker in summary["workers"]}


def assert_ledger_is_exact(summary, total=None, gradients=1):
    """Assert that the summary's proof and counts are exact. `total`: the updates of the run; None if it was stopped."""
    updates = summary["updates"]
    assert summary["outcome"] == ("stopped" if total is None else "completed")
    total = total or updates["applied"]
    assert (updates["scheduled"], updates["applied"]) == (total, total)
    assert (updates["duplicated"], updates["lost"]) == (0, 0)
    rows = total * gradients
    assert summary["proof"]["holds"] and all(part["rows"] == rows for part in summary["proof"]["shards"])
    assert sum(worker["updates"] for worker in summary["workers"]) == rows
