"""The options of `run` that follow a run of other processes: --callbacks and --try, on real clusters."""

import os
import re
import subprocess
import sys

import pytest

import ps_cluster
from ps_cluster.api.program import COMMAND, without_options, words_of_run
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import PROJECT, unhurried

CALLBACKS = """
import keras

def callbacks():
    def look(epoch, logs):
        print("epoch", epoch, "has", sorted(logs), flush=True)

    return [
        keras.callbacks.LambdaCallback(on_epoch_end=look),
        keras.callbacks.EarlyStopping("val_accuracy", restore_best_weights=True),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: 1 / 0),
    ]
"""


def run(folder, *options):
    """Return exit code, output and error of the command `run` in a folder."""
    found = subprocess.run(
        [sys.executable, str(PROJECT / "cli.py"), "run", "--dataset", "synthetic", *options],
        cwd=folder, env=os.environ, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    return found.returncode, found.stdout, found.stderr


@pytest.mark.cluster
def test_the_whole_way_is_tried_with_two_updates_by_each_worker_and_nothing_is_left(tmp_path, temporary_folder):
    """A fixture of tests/conftest.py checks that no temporary file is left."""
    code, told, error = run(tmp_path, "--try", "--workers", "2", "--model", "mlp", "--epochs", "100")
    assert code == 0, error
    assert "try: everything worked in" in told and "savedmodel" in told and "test accuracy" in told
    updates = {int(row[1]): int(row[2]) for row in re.finditer(r"worker (\d) +\d+ +(\d+) ", told)}
    assert updates.keys() == {0, 1} and min(updates.values()) >= 2
    assert f"with {sum(updates.values())} updates. Nothing was kept" in told and sum(updates.values()) < 100, (
        "not an epoch"
    )
    assert "run directory" not in told and not list(tmp_path.iterdir())
    assert_none_left(temporary_folder / "ps-cluster-try-")  # how the names of its folders begin


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_callbacks_of_a_file_see_an_epoch_and_one_that_fails_ends_the_run_and_is_told_in_one_line(tmp_path):
    (tmp_path / "my.py").write_text(CALLBACKS)
    # An epoch of 40 updates in 4 s leaves the cores to the two processes that score it.
    epochs = ("--epochs", "1000", "--set", "training.sample=shard:0/62", *map(str, unhurried(1)))
    alone = ("--mode", "single", "--model", "mlp", "--run-dir", "one")
    code, told, error = run(tmp_path, "--callbacks", "my.py:callbacks", *alone, *epochs)
    assert "epoch 0 has ['accuracy', 'loss', 'val_accuracy', 'val_loss']" in told
    last = error.strip().splitlines()[-1]
    assert code == 1 and "my.py:callbacks' raised ZeroDivisionError" in last and "on_epoch_end of epoch 1" in last
    assert ps_cluster.Result(tmp_path / "one").outcome == "stopped"
    assert_none_left(tmp_path)


def test_options_are_left_out_with_their_values_and_others_stay():
    words = ["--a", "1", "--b=2", "--flag", "--c", "--a"]
    assert without_options(words, ("--a", "--b"), ("--flag",)) == ["--c"]
    assert without_options(words, ("--c",)) == ["--a", "1", "--b=2", "--flag"]
    assert without_options(words, ()) == words


def test_a_setting_of_the_new_command_replaces_the_one_that_the_user_has_given(tmp_path):
    words = ["--set", "training.steps=1000", "--set=training.seed=1", "--set", "training.epochs=2"]
    argv = words_of_run(words, RunDir(tmp_path), {"training.steps": 100}, without=())
    kept = ["--set", "training.seed=1", "--set", "training.epochs=2"]
    assert argv == [*COMMAND, "run", *kept, "--run-dir", str(tmp_path), "--set", "training.steps=100"]


COMPILED = """
import keras

def build(examples):
    model = keras.Sequential([keras.Input(examples.image("mine").shape), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_a_loss_of_compile_is_not_divided_by_the_number_of_workers_that_wait_for_each_other(tmp_path):
    """Within TensorFlow's strategy of these workers Keras divides it. The proof computes updates again outside of it."""
    (tmp_path / "my.py").write_text(COMPILED)
    code, _, error = run(
        tmp_path, "--mode", "sync", "--workers", "2", "--model", "my.py:build", "--steps", "20", "--run-dir", "one"
    )
    assert code == 0, error
    assert ps_cluster.Result(tmp_path / "one").summary["proof"]["recomputed"]["updates"] > 0
    assert_none_left(tmp_path)
