"""Read MNIST and sets in its form: 70,000 grey images of 28x28 pixels, as four IDX files or as Keras's archive."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ps_cluster.config.datasets import Contents, DataSettings, ImageDataSet, NotThisDataSet
from ps_cluster.files.untrusted import open_regular

ROWS = {"train": 60_000, "test": 10_000}
_IDX = {"train": "train", "test": "t10k"}  # the beginning of a file's name
_HEADER_BYTES_MAX = 10_000


class MnistForm(ImageDataSet):
    """A set in the form of MNIST.

    Attributes:
      keras_archive: the name of Keras's archive of it; "" if there is none.
      folders: where its IDX files may be in a folder with several data sets.
      classes: names of the ten classes.
      in_equal_parts: whether each class has equally many images. That tells sets of one form apart.
    """

    keras_archive = ""
    folders: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    in_equal_parts = False

    def candidates(self, place: Path) -> Iterator[Path]:
        """Yield every archive and every folder of IDX files that `place` is or contains, best first. Opens nothing."""
        if os.path.isfile(place):
            yield place
            return
        if self.keras_archive and os.path.isfile(place / self.keras_archive):
            yield place / self.keras_archive
        for name in (".", *self.folders):
            if any(_idx_file(place / name, split, "images", 3) for split in ROWS):
                yield place / name

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        """Read the four IDX files of a folder, or Keras's archive: images uint8 [N, 28, 28, 1] and labels uint8 [N].

        Raises:
          NotThisDataSet: damaged, incomplete, or another set.
        """
        assert source is not None  # it is always read from files
        try:
            arrays = _from_folder(source) if source.is_dir() else _from_archive(source)
            self._check(arrays["train"]["target"])
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, ValueError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise NotThisDataSet(f"'{source}' is not {self.title} ({reason}); give {self.wanted}") from error
        return Contents.of(arrays["train"], arrays["test"], classes=self.classes)

    def _check(self, labels: np.ndarray) -> None:
        counts = np.bincount(labels, minlength=10)
        if len(counts) > 10:
            raise ValueError(f"a label is {int(labels.max())}")
        if (counts == counts[0]).all() != self.in_equal_parts:
            equally = "not equally many" if self.in_equal_parts else "equally many"
            raise ValueError(f"its classes have {equally} images")


def _from_folder(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for split, rows in ROWS.items():
        files = _idx_file(folder, split, "images", 3), _idx_file(folder, split, "labels", 1)
        if None in files:
            kind = "images-idx3" if files[0] is None else "labels-idx1"
            raise ValueError(f"it lacks {_IDX[split]}-{kind}-ubyte")
        images, labels = (read_idx(file, shape) for file, shape in zip(files, ((rows, 28, 28), (rows,))))  # type: ignore[arg-type]
        arrays[split] = {"image": images[..., None], "target": labels}
    return arrays


def _idx_file(folder: Path, split: str, what: str, dimensions: int) -> Path | None:
    """Return the file by any of the names that it is known by; None without one."""
    stem = f"{_IDX[split]}-{what}"
    names = (f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte")
    files = (folder / f"{name}{end}" for name in names for end in (".gz", ""))
    return next((file for file in files if os.path.isfile(file)), None)


def _from_archive(path: Path) -> dict[str, dict[str, np.ndarray]]:
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        return {
            split: {
                "image": _array(archive, f"x_{split}.npy", (rows, 28, 28))[..., None],
                "target": _array(archive, f"y_{split}.npy", (rows,)),
            }
            for split, rows in ROWS.items()
        }


def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of the archive, uint8 of this shape. Nothing larger is unpacked, and no object in it."""
    try:
        info = archive.getinfo(name)
    except KeyError as error:
        raise ValueError(f"it lacks {name}") from error
    most = int(np.prod(shape)) + _HEADER_BYTES_MAX
    if info.file_size > most:
        raise ValueError(f"{name} has {info.file_size} bytes")
    with archive.open(info) as member:
        array = np.lib.format.read_array(member, allow_pickle=False, max_header_size=_HEADER_BYTES_MAX)
    if array.dtype != np.uint8 or array.shape != shape:
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)} instead of uint8 {list(shape)}")
    return array


# Read arrays in the IDX format of MNIST, gzipped or not (http://yann.lecun.com/exdb/mnist, "File formats").

_BYTES = 0x08  # the type code of uint8, the only one in these sets
_GZIP = b"\x1f\x8b"


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array, uint8, which must have this shape. Nothing beyond it is read.

    Raises:
      OSError: the system refused, or damaged compression.
      EOFError: cut short.
      ValueError: another format, type or shape.
    """
    with open_regular(path) as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        with gzip.open(file) if packed else io.BufferedReader(file) as stream:  # type: ignore[type-var]
            return _read(stream, shape)  # type: ignore[arg-type]


def _read(stream: BinaryIO, shape: tuple[int, ...]) -> np.ndarray:
    header = struct.Struct(f">HBB{len(shape)}I")
    beginning = stream.read(header.size)
    if len(beginning) < header.size:
        raise EOFError("it is cut short")
    zero, code, dimensions, *found = header.unpack(beginning)
    if (zero, code, dimensions) != (0, _BYTES, len(shape)):
        raise ValueError(f"no IDX file of bytes in {len(shape)} dimensions")
    if tuple(found) != shape:
        raise ValueError(f"an array of {found} instead of {list(shape)}")
    size = math.prod(shape)
    content = stream.read(size + 1)
    if len(content) < size:
        raise EOFError("it is cut short")
    if len(content) > size:
        raise ValueError("it is longer than it says")
    return np.frombuffer(content, np.uint8).reshape(shape)
