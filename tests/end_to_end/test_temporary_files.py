"""A run and its readers leave nothing in the temporary folder. tests/conftest.py looks after all other commands."""

import os
import signal

import pytest
from PIL import Image

from tests.helpers.planted import plant, run_of
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import finish, small, start, tasks, wait_for_training

pytestmark = pytest.mark.cluster

# As a network of a user may: it makes a temporary file and leaves it there.
LEAVES_A_FILE = """
import keras, tempfile
def build(examples, settings):
    tempfile.mkstemp(prefix="of-the-user-")
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10)])
"""


def test_a_run_with_tensorboard_and_what_reads_it_leave_nothing(tmp_path, temporary_folder):
    root = tmp_path / "run"
    told = finish(start("run", "--run-dir", root, "--tensorboard", *small("--steps", 4, "--workers", 1)))
    assert list(temporary_folder.iterdir()) == [] and not (root / "tmp").exists(), told
    Image.new("RGB", (32, 32)).save(tmp_path / "picture.png")
    for words in (
        ("evaluate", "--checkpoint-dir", root, "--once"),
        ("export", "--run", root, "--to", "keras,savedmodel,tflite"),
        ("predict", tmp_path / "picture.png", "--run", root, "--output", tmp_path / "predicted.csv"),
    ):
        finish(start(*words))
        assert list(temporary_folder.iterdir()) == [], words
    assert_none_left(tmp_path)


def test_what_is_left_when_worker_and_launcher_are_killed_is_in_the_run_and_goes_with_it(tmp_path, temporary_folder):
    (tmp_path / "my.py").write_text(LEAVES_A_FILE)
    root = tmp_path / "run"
    options = ("--model", tmp_path / "my.py:build", "--steps", 60, "--batch-size", 8, "--workers", 1)
    slow = ("--set", "cluster.straggler=0:+0.1s", "--set", "checkpoints.snapshot_every_seconds=0.5")
    launcher = start("run", "--run-dir", root, *small(*options), *slow)
    try:
        wait_for_training(root, updates=5)
        first = tasks(root)["worker", 0]["pid"]
        assert list((root / "tmp").glob("of-the-user-*")) and (root / "tmp").stat().st_mode & 0o777 == 0o700
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: tasks(root)["worker", 0]["pid"] != first, within_s=60)
    finally:
        launcher.kill()
        launcher.communicate()
    assert_none_left(root)
    assert list(temporary_folder.iterdir()) == []
    plant(root)  # as in a run directory from elsewhere
    finish(start("run", "--resume", root, "--code", tmp_path / "my.py"))
    assert_none_left(root)
    assert run_of(root) == []
    assert not (root / "tmp").exists()
