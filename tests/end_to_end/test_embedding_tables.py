"""A network of embedding tables in a real cluster: rows travel, whoever is killed, and plain Keras has the same model."""

import os
import signal
import time

import keras
import numpy as np
import pytest

import ps_cluster.layers  # noqa: F401 - for the models that Keras loads
from ps_cluster.config import build_config
from ps_cluster.data.recomputed_batches import RecomputedBatches
from ps_cluster.runs import checkpoints
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.training.resuming import newest_for
from tests.helpers.exhaustive import mostly
from tests.helpers.finished_runs import assert_ledger_is_exact, update_columns
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    LIMIT_S,
    SNAPSHOTS,
    finish,
    rows,
    start,
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
KEYS, WIDTH, EXAMPLES = 200, 4, 400
ROWS = 4 * KEYS  # most of them never change, so snapshots hold only those that do
TABLE_LAYER = f'keras.layers.Embedding({ROWS}, {WIDTH}, name="keys")'
NETWORK = f"""
import keras

def build(examples):
    keys = keras.Input([3], dtype="int32")
    rows = {TABLE_LAYER}(keys)
    return keras.Model(keys, keras.layers.Dense(2)(keras.layers.Flatten()(rows)))
"""
DRAW = np.random.default_rng(0)
INPUTS = {split: (DRAW.integers(0, KEYS, [EXAMPLES, 3]) ** 2 // KEYS).astype(np.int32) for split in ("train", "test")}
# Whether most keys of an example are odd. Guessing "no" is right for 60.5 % of the test examples. Plain Keras with the
# same network, rule and rate is right for 79.5, 83.5 and 80.0 % after 40 updates of 8 examples (three seeds), and for
# 88 to 91 % after 80.
CLASSES = {split: ((keys % 2).sum(1) > 1).astype(np.uint8) for split, keys in INPUTS.items()}
LEARNED = 0.75
ADAGRAD = ("--set=optimizer.rule=adagrad", "--learning-rate", 0.5, "--set=optimizer.weight_decay=0")
TABLE = f"--set=model.rows_from={ROWS}"


def learning_keys(folder):
    """Write a network and its examples into a folder; return the options to train it."""
    (folder / "net.py").write_text(NETWORK)
    arrays = {f"x_{split}": keys for split, keys in INPUTS.items()} | {f"y_{split}": y for split, y in CLASSES.items()}
    np.savez(folder / "keys.npz", **arrays)
    return "--dataset", folder / "keys.npz", "--model", f"{folder / 'net.py'}:build", *ADAGRAD


def wait_until_changed_rows_would_be_restored(run_dir, servers):
    """Wait until the state from which so many servers would continue has only the rows that changed since a full one."""

    def is_newest():
        newest = newest_for(servers, RunDir.open(run_dir), lambda line: None)
        return newest is not None and newest.since is not None

    wait_until(is_newest, within_s=LIMIT_S, every_s=0.1)


@pytest.mark.parametrize("launcher_is_killed", mostly([False, True], False))
def test_rows_travel_exactly_once_whatever_is_killed(launcher_is_killed, tmp_path):
    """Ctrl-C drains the run to a last checkpoint that is scored, unless its launcher is killed, too."""
    run_dir, started = tmp_path / "run", time.monotonic()
    cluster = ("--workers", 2, "--ps", 2, "--steps", 100_000, *unhurried(2, 0.2), *SNAPSHOTS)
    process = start_run(run_dir, *learning_keys(tmp_path), TABLE, *cluster)
    wait_for_training(run_dir, updates=10)
    killed_after, first = time.monotonic() - started, tasks(run_dir)
    for victim in (("worker", 1), ("evaluator", 0)):
        os.kill(first[victim]["pid"], signal.SIGKILL)
    wait_for_training(run_dir, updates=rows(run_dir)[-1]["applied"] + 10)
    assert tasks(run_dir)["worker", 1]["pid"] != first["worker", 1]["pid"]
    wait_until_changed_rows_would_be_restored(run_dir, servers=2)
    for victim in (("ps", 1), ("worker", 0)):
        os.kill(first[victim]["pid"], signal.SIGKILL)
    wait_until_it_trains_without(run_dir, {first[task]["pid"] for task in (("ps", 0), ("ps", 1), ("worker", 0))})
    if launcher_is_killed:
        wait_until_changed_rows_would_be_restored(run_dir, servers=1)
        process.kill()
        output, _ = process.communicate(timeout=20)
        assert_none_left(run_dir)
        longer = ("--steps", rows(run_dir)[-1]["scheduled"] + 40)
        finish(start("run", "--resume", run_dir, *longer, "--ps", 1, "--code", tmp_path / "net.py"))
    else:
        chief = tasks(run_dir)["chief", 0]["pid"]
        os.kill(chief, signal.SIGKILL)
        wait_until_it_trains_without(run_dir, {chief})
        # The last session samples an update of each worker.
        wait_for_training(run_dir, updates=rows(run_dir)[-1]["applied"] + 10)
        output = stop(process)
    assert_none_left(run_dir)
    assert output.count("from the newest snapshot") == (1 if launcher_is_killed else 2)
    summary = summary_of(run_dir)
    if not launcher_is_killed:
        assert summary["evaluation"]["step"] == summary["updates"]["applied"]
        assert summary["updates"]["applied"] == checkpoints.steps(run_dir / "checkpoints")[-1]
        assert summary["restarts"]["evaluator-0"] == 1
        assert tasks(run_dir)["ps", 0]["address"] != first["ps", 0]["address"]
        assert_times_are_those_of_the_whole_run(summary, killed_after)
    steps = summary["updates"]["scheduled"]
    assert_ledger_is_exact(summary, steps if launcher_is_killed else None)
    assert summary["learned"] and summary["evaluation"]["best_test_accuracy"] > LEARNED
    recomputed = summary["proof"]["recomputed"]
    assert recomputed["updates"] >= 3 and recomputed["unchecked"] == []
    assert max(recomputed["largest_deviations"].values()) < 1

    batches = RecomputedBatches(build_config(overrides={"training.batch_size_per_worker": 8}), EXAMPLES)
    distinct = [len(np.unique(INPUTS["train"][batches.of_batches(np.array(step), 0).ids])) for step in range(steps)]
    columns = update_columns(run_dir, "step", "rows", "row_values")
    assert columns["rows"].tolist() == [distinct[step] for step in columns["step"]]
    assert (columns["row_values"] == WIDTH * columns["rows"]).all()
    assert summary["tables"] == {"rows": sum(distinct), "row_values": WIDTH * sum(distinct)}

    scores = keras.models.load_model(run_dir / "best" / "model.keras").predict(INPUTS["test"], verbose=0)
    accuracy = (scores.argmax(1) == CLASSES["test"]).mean()
    assert accuracy == pytest.approx(summary["evaluation"]["best_test_accuracy"], abs=1e-6)


def assert_times_are_those_of_the_whole_run(summary, killed_after):
    """From the first update to the last: what was trained before a fault counts, and so does the time without training."""
    assert summary["startup_seconds"] < killed_after, "that of the first start"
    assert summary["train_seconds"] > killed_after - summary["startup_seconds"] + summary["interrupted_seconds"]
    assert summary["interrupted_seconds"] > 0 and 0 < summary["goodput"] < 1


@pytest.mark.exhaustive
def test_rows_of_keys_without_a_limit_are_learnt_once_though_a_parameter_server_is_killed(tmp_path):
    draw, network = np.random.default_rng(1).integers(-(2**62), 2**62, KEYS), tmp_path / "keys.py"
    layer = f"DynamicEmbedding(64, {WIDTH}, admit_after=2, scale=0.5)"
    text = NETWORK.replace("import keras", "import keras\nfrom ps_cluster.layers import DynamicEmbedding")
    network.write_text(text.replace('dtype="int32"', 'dtype="int64"').replace(TABLE_LAYER, layer))
    inputs = {split: draw[ids] for split, ids in INPUTS.items()}
    arrays = {f"x_{split}": keys for split, keys in inputs.items()} | {f"y_{split}": y for split, y in CLASSES.items()}
    np.savez(tmp_path / "keys.npz", **arrays)
    data = ("--dataset", tmp_path / "keys.npz", "--model", f"{network}:build", *ADAGRAD)
    run_dir = tmp_path / "run"
    process = start_run(run_dir, *data, "--workers", 2, "--ps", 2, "--steps", 60, *unhurried(2, 0.2), *SNAPSHOTS)
    wait_for_training(run_dir, updates=10)
    wait_for_snapshots(run_dir)
    os.kill(tasks(run_dir)["ps", 1]["pid"], signal.SIGKILL)
    finish(process)
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert_ledger_is_exact(summary, 60)
    recomputed = summary["proof"]["recomputed"]
    assert recomputed["updates"] >= 2 and max(recomputed["largest_deviations"].values()) < 1
    (keyed,) = summary["keyed"]
    assert keyed["places"] == 64 >= keyed["rows"] > 32 and keyed["ended"] > 0
    scores = keras.models.load_model(run_dir / "best" / "model.keras").predict(inputs["test"], verbose=0)
    accuracy = (scores.argmax(1) == CLASSES["test"]).mean()
    assert accuracy == pytest.approx(summary["evaluation"]["best_test_accuracy"], abs=1e-6)
