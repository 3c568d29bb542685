"""Users bring files and code with mistakes. Each error names the field, the value, what is supported, and the page."""

import re

import numpy as np
import pytest

from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.modes import MODES
from tests.helpers.bad_input import PROJECT, Row, assert_told, make_folder

NO_ARCHIVE = b"PK\x05\x06" + bytes(18)  # an empty zip
CODE = {"mine.py": "x = 1\n"}
EXTENDING = "docs/extending.md"
OWN_DATA, OWN_NETWORK = f"{EXTENDING}#your-own-data", f"{EXTENDING}#your-own-network"

CASES = [
    (
        "run --dataset empty",
        {},
        ["dataset", "/empty' has no known format", "image_folder: ", "arrays", "table", OWN_DATA],
    ),
    ("run --dataset mine.py:load", CODE, ["data set", "mine.py:load'", "defines no 'load'", OWN_DATA]),
    ("run --dataset mine.py:x", CODE, ["data set", "mine.py:x'", "a function, or a", OWN_DATA]),
    ("run --dataset imagenet", {}, ["--dataset", "'imagenet'", "cifar10", "file.py:name", "a path", OWN_DATA]),
    ("run --dataset x.npz", {"x.npz": NO_ARCHIVE}, ["dataset", "x.npz'", "x_train", OWN_DATA]),
    ("run --dataset cifar10 --data-dir x.npz", {"x.npz": NO_ARCHIVE}, ["data_dir", "'x.npz'", "CIFAR-10", OWN_DATA]),
    ("run --dataset mnist --data-dir empty", {}, ["data_dir", "'empty'", "mnist.npz", OWN_DATA]),
    ("run --data-dir absent", {}, ["data_dir", "'absent'", "does not exist", OWN_DATA]),
    ("run --model ../mynet.py", {}, ["--model", "'../mynet.py'", "../mynet.py:NAME", "airbench", OWN_NETWORK]),
    ("run --model mine.py", CODE, ["--model", "'mine.py'", "mine.py:NAME", "airbench", OWN_NETWORK]),
    ("run --model net.h5", {"net.h5": b""}, ["--model", "'net.h5'", "airbench", "file.py:name", OWN_NETWORK]),
    ("run --model absent.py:build", {}, ["network", "absent.py:build'", "there is no file", OWN_NETWORK]),
    ("run --model mine.py:build", CODE, ["network", "mine.py:build'", "defines no 'build'", OWN_NETWORK]),
    ("run --model mine.py:x", CODE, ["network", "mine.py:x'", "a function, or a", OWN_NETWORK]),
    ("run --model mine.py:x", {"mine.py": "1 / 0"}, ["network", "mine.py:x'", "ZeroDivisionError", OWN_NETWORK]),
    ("data show cifar10 --model mine.py", CODE, ["--model", "'mine.py'", "mine.py:NAME", OWN_NETWORK]),
    ("run --mode mine.py", CODE, ["--mode", "'mine.py'", "mine.py:NAME", "async", EXTENDING]),
    ("run --mode mine.py:x", CODE, ["mode", "mine.py:x'", "config.modes.Mode", EXTENDING]),
    ("run --mode asink", {}, ["--mode", "'asink'", "did you mean 'async'", EXTENDING]),
    ("compare --modes async,mine.py", CODE, ["arms.1.mode", "'mine.py'", "mine.py:NAME", EXTENDING]),
    ("run --staleness-method mine.py", CODE, ["--staleness-method", "'mine.py'", "inverse", EXTENDING]),
    ("run --set optimizer.rule=mine.py", CODE, ["optimizer.rule", "'mine.py'", "nesterov", EXTENDING]),
    ("run --set schedule.kind=mine.py:x", CODE, ["schedule", "mine.py:x'", "config.schedules.Schedule", EXTENDING]),
    ("chaos --kinds mine.py", CODE, ["--kinds", "'mine.py'", "kill worker", EXTENDING]),
]


@pytest.mark.parametrize(("command", "files", "says"), CASES, ids=[case[0] for case in CASES])
def test_the_line_names_field_value_what_is_supported_and_the_page(command, files, says, tmp_path, commands):
    assert_told(Row(command, says, files), make_folder(tmp_path / "here"), commands)


@pytest.mark.parametrize("kinds", [DATASETS, MODES], ids=lambda kinds: kinds.noun)
def test_the_page_that_is_named_shows_the_option(kinds):
    option = {"data set": "--dataset", "mode": "--mode"}[kinds.noun]
    assert option in (PROJECT / kinds.page.partition("#")[0]).read_text()


def test_a_file_that_only_a_run_directory_names_is_told_without_a_page(tmp_path, monkeypatch):
    """The user did not name this file, so the line says how to allow it instead of how to write it."""
    monkeypatch.delenv("PS_CLUSTER_CODE", raising=False)
    with pytest.raises(Exception, match="add --code '.*' to let it run$"):
        MODES[f"{tmp_path}/mine.py:Toy"]


def test_arrays_of_which_one_is_missing_are_told_with_the_page(tmp_path, commands):
    folder = make_folder(tmp_path / "here")
    np.savez(folder / "half.npz", x_train=np.zeros([4, 2], np.float32))
    row = Row("run --dataset half.npz", ["half.npz'", "y_train", OWN_DATA])
    assert_told(row, folder, commands)
    assert re.search(r"\bdocs/extending\.md#your-own-data\b", commands.run(folder, row.arguments, {}).stderr)
