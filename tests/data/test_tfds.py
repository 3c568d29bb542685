"""Folders of TensorFlow Datasets."""

import importlib.util
import os
import subprocess
import sys

import pytest

from ps_cluster.installation import install_command
from ps_cluster.process_variables import LAUNCHER_PID
from tests.helpers.bad_input import PROJECT
from tests.helpers.own_data import packed, refused

INSTALLED = importlib.util.find_spec("tensorflow_datasets") is not None
PREPARE = """
import sys
import numpy as np
import tensorflow_datasets as tfds

class Spots(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        image, label = tfds.features.Image(shape=(6, 5, 1)), tfds.features.ClassLabel(names=["dark", "light"])
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"image": image, "label": label}))

    def _split_generators(self, manager):
        return {
            "train": self._generate_examples(10),
            "test": self._generate_examples(3, secret=True),
            "validation": self._generate_examples(4),
            "unsupervised": self._generate_examples(2, secret=True),
        }

    def _generate_examples(self, count, secret=False):
        for number in range(count):
            image = np.full((6, 5, 1), 200 * (number % 2), np.uint8)
            yield number, {"image": image, "label": -1 if secret else number % 2}

Spots(data_dir=sys.argv[1]).download_and_prepare()
"""


@pytest.mark.skipif(INSTALLED, reason="the library is installed")
def test_without_the_library_the_way_to_install_it_is_told(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("dataset_info.json", "features.json"):
        (tmp_path / "a" / name).write_text("{}")
    assert f"which is not installed: {install_command('tfds')}" in refused(tmp_path / "a")


@pytest.mark.skipif(not INSTALLED, reason="needs the extra tfds: pip install tensorflow-datasets")
def test_pictures_are_read_with_their_labels_from_the_splits_that_have_some(tmp_path, monkeypatch):
    (tmp_path / "prepare.py").write_text(PREPARE)
    subprocess.run([sys.executable, tmp_path / "prepare.py", tmp_path / "all"], check=True, capture_output=True)
    (tmp_path / "tensorflow_datasets.py").write_text("raise AssertionError('a file of the current folder is imported')")
    monkeypatch.chdir(tmp_path)
    dataset, told = packed(tmp_path / "all" / "spots" / "1.0.0")
    assert "the split 'test' is not used: its examples have no labels" in told
    assert dataset.spec.classes == ("dark", "light") and dataset.spec.image("x").shape == (6, 5, 1)
    assert (dataset.train_examples, dataset.test_examples) == (10, 4)
    assert (dataset.inputs("train")["image"][:, 0, 0, 0] == 200 * dataset.target("train")).all()


@pytest.mark.skipif(not INSTALLED, reason="needs the extra tfds: pip install tensorflow-datasets")
def test_a_damaged_folder_is_told_in_one_line(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("dataset_info.json", "features.json"):
        (tmp_path / "a" / name).write_text("{}")
    assert "can't be read: " in refused(tmp_path / "a")


def test_the_reader_ends_with_the_launcher_that_started_it(tmp_path):
    gone = os.environ | {LAUNCHER_PID: "1"}
    argv = [sys.executable, "-m", "ps_cluster.data.tfds_reader", tmp_path, tmp_path]
    ended = subprocess.run(argv, cwd=PROJECT, env=gone, capture_output=True)
    assert (ended.returncode, ended.stderr) == (1, b""), "it looks for its launcher before it looks for its library"
