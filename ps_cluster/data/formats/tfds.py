"""Read the data format `tfds`: pictures with labels, in a folder that TensorFlow Datasets has prepared."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ps_cluster.config.datasets import Contents
from ps_cluster.data import tfds_reader
from ps_cluster.data.formats import PictureFormat
from ps_cluster.data.picture_sets import PictureSettings, contents_of_pictures
from ps_cluster.data.pictures import Picture
from ps_cluster.data.splits import TRAIN
from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.installation import install_command
from ps_cluster.process_variables import TEMPORARY
from ps_cluster.system.environment import for_child

READER = tfds_reader.__name__


class Tfds(PictureFormat):
    name = "tfds"
    looks_for = "the folder of one version of a data set from TensorFlow Datasets, with dataset_info.json"

    def recognises(self, path: Path) -> bool:
        return os.path.isfile(path / "dataset_info.json") and os.path.isfile(path / "features.json")

    def read(self, source: Path | None, settings: PictureSettings) -> Contents:
        if importlib.util.find_spec("tensorflow_datasets") is None:
            raise UserError(
                f"dataset: '{self.path}' is a folder of TensorFlow Datasets, which is not installed: "
                f"{install_command('tfds')}"
            )
        copied = _CopiedPictures(self.path)
        contents = contents_of_pictures(
            {split: copied.labelled(name) for split, name in copied.splits.items()}, copied.classes, settings
        )
        return replace(contents, notes=(*copied.notes, *contents.notes))


class _CopiedPictures:
    """The encoded pictures of a data set, copied to a temporary folder that is removed with this object.

    Another process copies them, because reading the data set needs TensorFlow, which the launcher does not import.
    """

    def __init__(self, path: Path):
        self._folder = tempfile.TemporaryDirectory(prefix="ps-cluster-tfds-")
        place = Path(self._folder.name)
        done = subprocess.run(
            [sys.executable, "-m", READER, str(path), str(place)],
            env=for_child(os.environ) | {TEMPORARY: str(place)},  # so that the child ends with this process
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if done.returncode:
            last = (done.stderr.decode(errors="replace").strip() or "no reason").splitlines()[-1]
            raise Malformed(f"it can't be read: {one_line(last, 300)}")
        about = json.loads((place / "about.json").read_text())
        self.classes: list[str] = about["classes"]
        self.notes: list[str] = about["notes"]
        self.splits = {"train": TRAIN} | ({"test": about["test"]} if about["test"] else {})

    def labelled(self, split: str) -> list[Picture]:
        """Return the pictures of a split with their labels."""
        place = Path(self._folder.name)
        labels, ends = (np.load(place / f"{split}.{what}.npy") for what in ("labels", "ends"))
        starts = [0, *ends[:-1].tolist()]
        return [
            Picture(f"{split}[{number}]", partial(self._open, split, start, end), label)
            for number, (start, end, label) in enumerate(zip(starts, ends.tolist(), labels.tolist()))
        ]

    def _open(self, split: str, start: int, end: int) -> BinaryIO:
        with (Path(self._folder.name) / f"{split}.pictures").open("rb") as file:
            file.seek(start)
            return io.BytesIO(file.read(end - start))
