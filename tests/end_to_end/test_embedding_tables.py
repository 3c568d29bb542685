"""A network of embedding tables in a real cluster: rows travel, whoever is killed, and plain Keras has the same model."""

import os
import signal

import keras
import numpy as np
import pytest

import ps_cluster.layers  # noqa: F401 - for the models that Keras loads
from ps_cluster.config import build_config
from ps_cluster.data.recomputed_batches import RecomputedBatches
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.training.resuming import newest_for
from tests.helpers.exhaustive import mostly
from tests.helpers.finished_runs import assert_ledger_is_exact, last_arrays, update_columns
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import (
    LIMIT_S,
    SNAPSHOTS,
    finish,
    rows,
    start,
    start_run,
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
CLASSES = {split: (keys.sum(1) % 2).astype(np.uint8) for split, keys in INPUTS.items()}
ADAGRAD = ("--set=optimizer.rule=adagrad", "--learning-rate", 0.05, "--set=optimizer.weight_decay=0")
TABLE, WHOLE = f"--set=model.rows_from={ROWS}", f"--set=model.rows_from={ROWS + 1}"


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
def test_rows_travel_exactly_once_though_a_worker_and_a_parameter_server_are_killed(launcher_is_killed, tmp_path):
    run_dir = tmp_path / "run"
    cluster = ("--workers", 3, "--ps", 2, "--steps", 100_000, *unhurried(seconds=0.2), *SNAPSHOTS)
    process = start_run(run_dir, *learning_keys(tmp_path), TABLE, *cluster)
    wait_for_training(run_dir, updates=10)
    first = tasks(run_dir)
    os.kill(first["worker", 1]["pid"], signal.SIGKILL)
    wait_for_training(run_dir, updates=rows(run_dir)[-1]["applied"] + 10)
    assert tasks(run_dir)["worker", 1]["pid"] != first["worker", 1]["pid"]
    wait_until_changed_rows_would_be_restored(run_dir, servers=2)
    os.kill(tasks(run_dir)["ps", 1]["pid"], signal.SIGKILL)
    wait_until_it_trains_without(run_dir, {first["ps", index]["pid"] for index in range(2)})
    if launcher_is_killed:
        wait_until_changed_rows_would_be_restored(run_dir, servers=1)
        process.kill()
        output, _ = process.communicate(timeout=20)
        assert_none_left(run_dir)
        longer = ("--steps", rows(run_dir)[-1]["scheduled"] + 40)
        finish(start("run", "--resume", run_dir, *longer, "--ps", 1, "--code", tmp_path / "net.py"))
    else:
        process.send_signal(signal.SIGINT)
        output = finish(process)
    assert_none_left(run_dir)
    assert "from the newest snapshot" in output
    summary = summary_of(run_dir)
    steps = summary["updates"]["scheduled"]
    assert_ledger_is_exact(summary, steps if launcher_is_killed else None)
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


@pytest.mark.exhaustive
def test_one_worker_with_rows_learns_what_a_process_alone_learns_with_whole_tables(tmp_path):
    modes = {"async": ("--workers", 1, "--ps", 2, TABLE), "single": (WHOLE,)}
    options = (*learning_keys(tmp_path), "--steps", 30, "--no-evaluator")
    runs = [start_run(tmp_path / mode, *options, "--mode", mode, *own) for mode, own in modes.items()]
    for process in runs:
        finish(process)
    assert_none_left(tmp_path)
    ended = {mode: last_arrays(tmp_path / mode) for mode in modes}
    assert summary_of(tmp_path / "async")["tables"]["rows"] and summary_of(tmp_path / "single")["tables"] is None
    for name in ("weights", "slot_accumulator"):
        found, expected = (ended[mode][name] for mode in modes)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=name)


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
