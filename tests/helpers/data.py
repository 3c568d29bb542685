"""Small data sets of images in the form of CIFAR-10, and damaged files of data sets."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config.datasets import DATASETS, Contents, NotThisDataSet
from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.packing import write_packed
from ps_cluster.data.sets import cifar

LETTERS = tuple("abcdefghij")
KINDS = {"cifar10": "real", "synthetic": "synthetic"}
CIFAR_ROWS = 100  # images in a file of the made-up CIFAR sets (tests/data/conftest.py); an official file has 10,000


def contents_of(arrays: tuple, classes: tuple = LETTERS) -> Contents:
    """Return contents of a data set. `arrays`: training images and labels, then test images and labels."""
    images, labels, test_images, test_labels = arrays
    splits = {"train": {"image": images, "target": labels}, "test": {"image": test_images, "target": test_labels}}
    return Contents(replace(cifar.SPEC, classes=classes), splits)


def pack_images(directory: Path, name: str, classes: tuple, arrays: tuple, source: str = "") -> PackedDataset:
    return write_packed(directory, name, KINDS[name], contents_of(arrays, classes), source)


def only_named(
    name: str = "synthetic", directory: Path = Path("/data"), train: int = 100, test: int = 10
) -> PackedDataset:
    """Return a data set that has no files."""
    return PackedDataset(name, KINDS[name], directory, cifar.SPEC, train, test)


def random_images(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 [count, 32, 32, 3] and labels uint8 [count]."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, 32, 32, 3), np.uint8), draw.integers(0, 10, count).astype(np.uint8)


def arrays_of(contents: Contents) -> tuple[np.ndarray, ...]:
    """Return training images and labels, then test images and labels."""
    return tuple(contents.arrays[split][name] for split in ("train", "test") for name in ("image", "target"))


def copy_with_changes(folder: Path, copy: Path, changes: Mapping[str, bytes | None]) -> Path:
    """Link the files of a folder into `copy`. `changes`: name → another content, or None to leave the file out."""
    for file in folder.iterdir():
        if file.name not in changes:
            os.link(file, copy / file.name)
    for name, content in changes.items():
        if content is not None:
            (copy / name).write_bytes(content)
    return copy


def refusal_of(name: str, source: Path) -> str:
    """Return the line with which a data set of the package refuses the files at a place."""
    with pytest.raises(NotThisDataSet) as error:
        DATASETS[name].read(source, None)
    assert "\n" not in str(error.value) and str(source) in str(error.value)
    return str(error.value)
