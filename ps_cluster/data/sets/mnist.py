"""Read MNIST and Fashion-MNIST: 70,000 grey images of 28x28 pixels, as four IDX files or as Keras's archive."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ps_cluster.config.datasets import Contents, Download, ImageDataSet, ImageSettings, NotThisDataSet
from ps_cluster.data.array_files import open_npz
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import reason

_KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
_BYTES = 0x08  # the type code of uint8 in an IDX file, the only one in these sets
_GZIP = b"\x1f\x8b"
MNIST_ROWS = {"train": 60_000, "test": 10_000}
IDX_BEGINNING = {"train": "train", "test": "t10k"}  # the beginnings of the names of files


class MnistLike(ImageDataSet[ImageSettings]):
    """A data set in the file format of MNIST."""

    keras_archive = ""  # the name of its archive in Keras, if there is one
    folders: tuple[str, ...] = ()  # where its IDX files may be in a folder with several data sets
    classes: tuple[str, ...] = ()  # the names of the ten classes
    in_equal_parts = False  # whether all classes have equally many images, as in Fashion-MNIST but not in MNIST

    def candidates(self, place: Path) -> Iterator[Path]:
        """Yield the paths that may be this data set, best first, without opening any file.

        If `place` is a file, it is the only path. If `place` is a folder, the paths lead to archives and folders in it.
        """
        if os.path.isfile(place):
            yield place
            return
        if self.keras_archive and os.path.isfile(place / self.keras_archive):
            yield place / self.keras_archive
        for name in (".", *self.folders):
            if any(idx_file(place / name, split, "images", 3) for split in MNIST_ROWS):
                yield place / name

    def read(self, source: Path | None, settings: ImageSettings) -> Contents:
        """Return images uint8 [N, 28, 28, 1] and labels uint8 [N] from four IDX files in a folder, or Keras's archive."""
        assert source is not None  # it is always read from files
        try:
            arrays = _from_folder(source) if source.is_dir() else _from_archive(source)
            self._check_counts(arrays["train"]["target"])
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise NotThisDataSet(f"'{source}' is not {self.title} ({reason(error)}); give {self.wanted}") from error
        return Contents.of(arrays["train"], arrays["test"], classes=self.classes)

    def _check_counts(self, labels: np.ndarray) -> None:
        """Raise ValueError if the labels are those of another data set in the same file format."""
        counts = np.bincount(labels, minlength=10)
        if len(counts) > 10:
            raise ValueError(f"a label is {int(labels.max())}, but labels are 0 to 9")
        if (counts == counts[0]).all() != self.in_equal_parts:
            have = "do not have" if self.in_equal_parts else "have"
            raise ValueError(f"its classes {have} equally many images")


def idx_file(folder: Path, split: str, what: str, dimensions: int) -> Path | None:
    """Return the IDX file with the images or labels of a split, under any of its published names.

    Return None if `folder` has no such file. `what`: "images" or "labels". `dimensions`: the number of axes of the
    array in the file.
    """
    stem = f"{IDX_BEGINNING[split]}-{what}"
    names = (f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte")
    files = (folder / f"{name}{end}" for name in names for end in (".gz", ""))
    return next((file for file in files if os.path.isfile(file)), None)


class FashionMnist(MnistLike):
    """Pictures of clothes in the file format of MNIST (Xiao et al. 2017, arXiv:1708.07747)."""

    name = "fashion_mnist"
    title = "Fashion-MNIST"
    archive = "the four files train-images-idx3-ubyte.gz and so on"
    wanted = "a folder with the four files train-images-idx3-ubyte(.gz) and so on"
    # The checksums are also in torchvision (prototype/datasets/_builtin/mnist.py, 01c11a0) and in TensorFlow Datasets
    # (url_checksums/fashion_mnist.txt, 333639b).
    downloads = tuple(
        Download(f"{_KERAS}/{name}-ubyte.gz", sha256, size_bytes)
        for name, sha256, size_bytes in (
            ("train-images-idx3", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            ("train-labels-idx1", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            ("t10k-images-idx3", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            ("t10k-labels-idx1", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        )
    )
    recipes = {"airbench": {"model": {"width": 0.5}, "training": {"epochs": 13.0}, "schedule": {"image_scales": []}}}
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw")
    classes = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    in_equal_parts = True


class Mnist(MnistLike):
    """Handwritten digits (LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition)."""

    name = "mnist"
    title = "MNIST"
    archive = "mnist.npz"
    wanted = "mnist.npz, or a folder with the four files train-images-idx3-ubyte(.gz) and so on"
    # The checksum is also in Keras (datasets/mnist.py, 3.15) and in stagedml/pylightnix (docs/demos/MNIST.py). Keras
    # prints this size when it downloads.
    downloads = (
        Download(f"{_KERAS}/mnist.npz", "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1", 11_490_434),
    )
    recipe = {"data": {"augmentation": {"flip": "none"}}}  # a mirrored digit is not a digit
    recipes = {"airbench": {"model": {"width": 0.25}, "training": {"epochs": 11.0}, "schedule": {"image_scales": []}}}
    keras_archive = "mnist.npz"
    folders = ("mnist", "MNIST", "MNIST/raw")
    classes = tuple("0123456789")


def _from_folder(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for split, rows in MNIST_ROWS.items():
        images, labels = idx_file(folder, split, "images", 3), idx_file(folder, split, "labels", 1)
        if images is None or labels is None:
            kind = "images-idx3" if images is None else "labels-idx1"
            raise ValueError(f"it lacks {IDX_BEGINNING[split]}-{kind}-ubyte")
        arrays[split] = {
            "image": read_idx(images, (rows, 28, 28))[..., None],
            "target": read_idx(labels, (rows,)),
        }
    return arrays


def _from_archive(path: Path) -> dict[str, dict[str, np.ndarray]]:
    arrays = open_npz(path)
    return {
        split: {
            "image": _checked(arrays, f"x_{split}", (rows, 28, 28))[..., None],
            "target": _checked(arrays, f"y_{split}", (rows,)),
        }
        for split, rows in MNIST_ROWS.items()
    }


def _checked(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in arrays:
        raise ValueError(f"it lacks {name}")
    array = arrays[name]
    if array.dtype != np.uint8 or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)} instead of uint8 {list(shape)}")
    return array


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array in an IDX file, uint8 of this shape. The file may be compressed by gzip.

    The format is described at http://yann.lecun.com/exdb/mnist, "File formats". Raises ValueError for another format, type,
    shape or length.
    """
    header, size = struct.Struct(f">HBB{len(shape)}I"), math.prod(shape)
    with open_regular(path) as file:
        is_packed = file.read(2) == _GZIP
        file.seek(0)
        content = (gzip.GzipFile(fileobj=file) if is_packed else file).read(header.size + size + 1)
    if len(content) < header.size:
        raise ValueError("it is cut short")
    zero, code, dimensions, *found = header.unpack_from(content)
    if (zero, code, dimensions) != (0, _BYTES, len(shape)):
        raise ValueError(f"it is no IDX file with a {len(shape)}-dimensional array of bytes")
    if tuple(found) != shape:
        raise ValueError(f"its array has the shape {found} instead of {list(shape)}")
    if len(content) != header.size + size:
        raise ValueError(
            "it is cut short" if len(content) < header.size + size else "it is longer than its header says"
        )
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(shape)
