"""What tasks on several machines must have in common, and how a difference is told."""

import dataclasses
import json
from pathlib import Path

import pytest

from ps_cluster.config import build_config, user_code
from ps_cluster.files.values import Malformed
from ps_cluster.process_variables import TRUSTED_FILES
from ps_cluster.training.agreement import MOST_BYTES, CompatibilityFingerprint, text_of
from tests.helpers.data import only_named

HERE = {"mode.name": "sync", "data.dataset": "synthetic", "model.precision": "float32", "cluster.workers": 2}
DATA = dataclasses.replace(only_named("synthetic", Path("/data"), 100, 10), checksum="ab" * 32)
DOOR = """
from ps_cluster.training.modes.base import DefaultMode

class Toy(DefaultMode):
    '''{what}'''
"""


def agreement(dataset=DATA, **settings) -> CompatibilityFingerprint:
    given = HERE | {key.replace("__", "."): value for key, value in settings.items()}
    return CompatibilityFingerprint.of(build_config(None, given), dataset)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """toy(folder, what) → the name of a mode in a file of this folder, which the user has named."""
    monkeypatch.setenv(TRUSTED_FILES, "")

    def write(folder: str, what: str) -> str:
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(DOOR.format(what=what))
        return user_code.trust_reference(f"{file}:Toy", tmp_path)

    return write


def test_a_setting_that_differs_is_named_with_both_values():
    told = agreement(training__batch_size_per_worker=32).difference(
        agreement(training__batch_size_per_worker=64), at="worker-1"
    )
    assert told == "training.batch_size_per_worker: 32 here, 64 at worker-1"


def test_what_a_machine_may_have_of_its_own_is_no_difference():
    own = {"cluster__intra_op_threads": 7, "cluster__pin_workers": False, "cluster__isolation": "off"}
    assert agreement().difference(agreement(data__data_dir="/mnt/other", **own), at="worker-1") is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"checksum": "cd" * 32}, f"content of the packed data (SHA-256): {'ab' * 8} here, {'cd' * 8} at ps-0"),
        ({"train_examples": 101}, "training examples: 100 here, 101 at ps-0"),
        ({"test_examples": 11}, "test examples: 10 here, 11 at ps-0"),
    ],
)
def test_other_packed_data_is_a_difference(changed, told):
    assert agreement().difference(agreement(dataclasses.replace(DATA, **changed)), at="ps-0") == told


def test_examples_that_are_held_out_count_as_training_examples():
    held_out = dataclasses.replace(DATA, train_examples=90, validation_examples=10)
    assert agreement().difference(agreement(held_out), at="ps-0") is None


@pytest.mark.parametrize("name", ["Python", "TensorFlow", "ps_cluster", "source code of ps_cluster (SHA-256)"])
def test_another_version_is_told_before_settings(name):
    mine = agreement()
    theirs = agreement(training__seed=7)
    theirs = theirs.model_copy(update={"versions": theirs.versions | {name: "0.0"}})
    assert mine.difference(theirs, at="worker-1") == f"{name}: {mine.versions[name]} here, 0.0 at worker-1"


def test_the_same_code_of_a_user_in_another_folder_is_no_difference(toy):
    assert (
        agreement(mode__name=toy("a", "one")).difference(agreement(mode__name=toy("b", "one")), at="worker-1") is None
    )


def test_the_same_data_of_a_user_in_another_folder_are_no_difference(tmp_path):
    for home in ("ada", "bob"):
        (tmp_path / home / "pets").mkdir(parents=True)
    names = [f"image_folder:{tmp_path}/{home}/pets" for home in ("ada", "bob")]
    here, there = (dataclasses.replace(DATA, name=name) for name in names)
    assert agreement(here).difference(agreement(there), at="worker-1") is None
    assert text_of(names[0]) == text_of(names[1]) == "image_folder:pets"
    assert text_of("/x/mine.py:load") == "mine.py:load" and text_of("sgd") == "sgd"
    assert (
        text_of("table:/home/ada/2024:05/houses.csv") == "table:houses.csv" and text_of("https://h/x") == "https://h/x"
    )


def test_other_code_of_a_user_in_a_file_of_the_same_name_is_a_difference(toy):
    told = agreement(mode__name=toy("a", "one")).difference(agreement(mode__name=toy("b", "two")), at="worker-1")
    assert told is not None and told.startswith("mode.name: content of mine.py (SHA-256): ")


def test_what_is_read_is_what_was_written():
    long = agreement(training__class_weights={str(label): 2.0 for label in range(1000)})
    assert CompatibilityFingerprint.from_json(long.to_json().encode()) == long
    other = agreement(training__class_weights={str(label): 2.0 for label in range(1, 1001)})
    assert long.difference(other, at="ps-0") is not None, "long values are told apart by their digests"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"\xff",
        json.dumps({"versions": {"a": "\x1b[2J"}, "settings": {}, "files": {}, "data": {}}),
        json.dumps({"versions": {"a": 1}, "settings": {}, "files": {}, "data": {}}),
        b" " * MOST_BYTES + b"{}",
    ],
)
def test_something_else_than_an_agreement_is_refused(text):
    with pytest.raises(Malformed):
        CompatibilityFingerprint.from_json(text)
