"""A command leaves nothing in the temporary folder, whatever it starts, and whoever is killed."""

import json
import os
import signal

import pytest
from PIL import Image

from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import finish, small, start, tasks, wait_for_training

pytestmark = pytest.mark.cluster

FEW = small("--steps", 4, "--workers", 1)
ALONE = {"TF_CONFIG": json.dumps({"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "chief", "index": 0}})}
COMMANDS = {
    "compare": ("compare", *small("--steps", 4), "--workers", 1, "--modes", "async", "--seeds", 1, "--tensorboard"),
    "sweep": ("sweep", "--vary", "training.seed=0,1", "--method", "grid", "--tensorboard", *FEW),
    "ensemble": ("ensemble", "--members", 2, *small("--steps", 4)),
    "bench": (
        "bench",
        "--arms",
        "single,cluster",
        "--models",
        "tutorial_cnn",
        "--precisions",
        "float32",
        "--rounds",
        1,
    ),
    "chaos": ("chaos", "--faults", 1, "--kinds", "kill evaluator", "--workers", 1),
    "task": ("task", *small("--steps", 4, "--mode", "single")),
    "doctor": ("doctor",),
}
# As a network of a user may: it makes a temporary file and leaves it there.
LEAVES_A_FILE = """
import keras, tempfile
def build(examples, settings):
    tempfile.mkstemp(prefix="of-the-user-")
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10)])
"""


@pytest.fixture
def temporary(tmp_path):
    """The folder for temporary files of what a test starts; empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def begin(temporary, *arguments, **env):
    return start(*arguments, env={"TMPDIR": str(temporary), **env})


def test_a_run_with_tensorboard_and_what_reads_it_leave_nothing(tmp_path, temporary):
    root = tmp_path / "run"
    told = finish(begin(temporary, "run", "--run-dir", root, "--tensorboard", *FEW))
    assert list(temporary.iterdir()) == [] and not (root / "tmp").exists(), told
    Image.new("RGB", (32, 32)).save(tmp_path / "picture.png")
    for words in (
        ("evaluate", "--checkpoint-dir", root, "--once"),
        ("export", "--run", root, "--to", "keras,savedmodel,tflite"),
        ("predict", tmp_path / "picture.png", "--run", root, "--output", tmp_path / "predicted.csv"),
    ):
        finish(begin(temporary, *words))
        assert list(temporary.iterdir()) == [], words
    assert_none_left(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_trains_leaves_nothing(tmp_path, temporary, command):
    option = {"bench": ("--output", tmp_path / "out.json"), "chaos": ("--run-dir", tmp_path / "out"), "doctor": ()}
    output = option.get(command, ("--run-dir" if command == "task" else "--output", tmp_path / "out"))
    finish(begin(temporary, *COMMANDS[command], *output, **(ALONE if command == "task" else {})))
    assert_none_left(tmp_path)


def test_what_is_left_when_worker_and_launcher_are_killed_is_in_the_run_and_goes_with_it(tmp_path, temporary):
    (tmp_path / "my.py").write_text(LEAVES_A_FILE)
    root = tmp_path / "run"
    options = ("--model", tmp_path / "my.py:build", "--steps", 60, "--batch-size", 8, "--workers", 1)
    slow = ("--set", "cluster.straggler=0:+0.1s", "--set", "checkpoints.snapshot_every_seconds=0.5")
    launcher = begin(temporary, "run", "--run-dir", root, *small(*options), *slow)
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
    assert list(temporary.iterdir()) == []
    finish(begin(temporary, "run", "--resume", root, "--code", tmp_path / "my.py"))
    assert_none_left(root)
    assert not (root / "tmp").exists()
