"""Read CIFAR-10 as people have it on disk: the official python archive, or the folder inside it.

The batches are pickles. Their contents are checked by structure (members, shapes, labels, counts), because sound copies
differ in their bytes. Nothing in a pickle is ever run.
"""

from __future__ import annotations

import gzip
import os
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from ps_cluster.catalogue.datasets import Contents, DataSettings, Download, ImageDataSet, NotThisDataSet
from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.data.restricted_pickle import PickledArray, load_plain
from ps_cluster.files.opening import open_regular, read_bytes

ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
# Mean and standard deviation of each channel of the training set, as published, in pixel units (0..255).
PIXEL_MEAN = (0.4914 * 255, 0.4822 * 255, 0.4465 * 255)
PIXEL_STD = (0.2470 * 255, 0.2435 * 255, 0.2616 * 255)
CLASSES: tuple[str, ...] = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPEC = ExampleSpec({"image": Field("uint8", (32, 32, 3), PIXEL_MEAN, PIXEL_STD)}, Field("uint8", ()), classes=CLASSES)

_TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST_BATCH = "test_batch"
_BATCHES = (*_TRAIN_BATCHES, _TEST_BATCH)
_META = "batches.meta"
_BATCH_EXAMPLES = 10_000
_MEMBER_BYTES_MAX = 64 * 2**20  # a batch has 31 MB; anything larger is not CIFAR-10
_ARCHIVE_BYTES_MAX = 2**29  # decompressed; CIFAR-10 has 186 MB
_MEMBERS_MAX = 1000  # CIFAR-10 has 9
_CHUNK_BYTES = 2**20

# Keras unpacks into a folder of its own, and has renamed the archive twice.
_FOLDERS = (".", FOLDER, f"{FOLDER}-target/{FOLDER}")
_ARCHIVES = (ARCHIVE, f"{FOLDER}.tar.gz", f"{FOLDER}-target_archive")


def candidates(place: Path) -> Iterator[Path]:
    """Yield every folder of batches and every archive that `place` is or contains, best first. Nothing is opened."""
    if os.path.isfile(place):  # not Path.is_file, which raises for an unreadable folder
        yield place
        return
    for name in _FOLDERS:
        if any(os.path.isfile(place / name / batch) for batch in _BATCHES):
            yield place / name
    for name in _ARCHIVES:
        if os.path.isfile(place / name):
            yield place / name


def read(source: Path) -> Contents:
    """Read an archive or a folder of batches, in the order of the batches' numbers.

    Returns:
        50,000 examples to train on and 10,000 to test: images uint8 [32, 32, 3], labels uint8 of ten classes.

    Raises:
        NotThisDataSet: damaged, truncated, incomplete, of another shape, or a pickle that asks for more than plain data.
    """
    train_examples = _BATCH_EXAMPLES * len(_TRAIN_BATCHES)
    images = np.empty((train_examples + _BATCH_EXAMPLES, 32, 32, 3), np.uint8)
    labels = np.empty(len(images), np.uint8)
    classes = CLASSES
    found = set()
    try:
        for name, content in _members(source):
            if name == _META:
                classes = _class_names(load_plain(content))
                continue
            start = _BATCHES.index(name) * _BATCH_EXAMPLES
            batch = slice(start, start + _BATCH_EXAMPLES)
            images[batch], labels[batch] = _batch(load_plain(content), name)
            found.add(name)
    except pickle.UnpicklingError as error:
        raise _not_cifar10(source, f"{name}: {_one_line(error)}") from error
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        raise _not_cifar10(source, _one_line(error)) from error
    if missing := [name for name in _BATCHES if name not in found]:
        raise _not_cifar10(source, f"it lacks {', '.join(missing)}")
    splits = {"train": slice(train_examples), "test": slice(train_examples, None)}
    arrays = {split: {"image": images[part], "target": labels[part]} for split, part in splits.items()}
    return Contents(replace(SPEC, classes=classes), arrays)


def _members(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each batch and of the class names, in any order."""
    wanted = (*_BATCHES, _META)
    if source.is_dir():
        for name in wanted:
            if (source / name).is_file():
                _check_size(name, (source / name).stat().st_size)
                yield name, read_bytes(source / name, _MEMBER_BYTES_MAX)
        return
    with open_regular(source) as file, gzip.open(file) as unpacked:
        # Read as a stream: nothing is unpacked onto the disk, and links in the archive are not followed.
        yield from _tar_members(_Bounded(unpacked), wanted)


def _tar_members(stream: _Bounded, wanted: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the plain files that are wanted. Everything else is skipped unread.

    That includes tar's extended headers: their long names and fields only concern other files, and tarfile would read
    them whole at any length.
    """
    for count in range(_MEMBERS_MAX):
        try:
            member = tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError) as error:  # type: ignore[attr-defined]  # not in its stubs
            if not count:
                raise ValueError("empty file") from error
            break
        name, padding = PurePosixPath(member.name).name, -member.size % tarfile.BLOCKSIZE
        if member.size < 0:
            raise ValueError(f"it has a member of {member.size} bytes")
        if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and name in wanted:
            _check_size(name, member.size)
            yield name, stream.read_exactly(member.size)
            stream.skip(padding)
        else:
            stream.skip(member.size + padding)
    else:
        raise ValueError(f"it has more than {_MEMBERS_MAX:,} members")
    while stream.read(_CHUNK_BYTES):  # gzip compares its checksum only at the very end
        pass


class _Bounded:
    """A stream that raises if it yields more bytes than a sound archive has."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._left = _ARCHIVE_BYTES_MAX

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"it has more than {_ARCHIVE_BYTES_MAX:,} bytes, decompressed")
        return content

    def read_exactly(self, size: int) -> bytes:
        """Return `size` bytes. Raises EOFError if there are fewer."""
        content = self.read(size)
        if len(content) < size:
            raise EOFError("it is cut short")
        return content

    def skip(self, size: int) -> None:
        while size:
            size -= len(self.read_exactly(min(size, _CHUNK_BYTES)))


def _check_size(name: str, size: int) -> None:
    if size > _MEMBER_BYTES_MAX:
        raise ValueError(f"{name} has {size} bytes")


def _batch(content: object, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 [10000, 32, 32, 3] and labels int [10000] of one unpickled batch."""
    fields = _text_keys(content, name)
    pixels, labels = fields.get("data"), fields.get("labels")
    if not isinstance(pixels, PickledArray):
        raise ValueError(f"{name} has no array 'data'")
    pixels = pixels.to_numpy()
    if pixels.dtype != np.uint8 or pixels.shape != (_BATCH_EXAMPLES, 3072):
        raise ValueError(f"{name}: 'data' is {pixels.dtype} {list(pixels.shape)} instead of uint8 [10000, 3072]")
    labels = labels.to_numpy() if isinstance(labels, PickledArray) else labels
    if not isinstance(labels, (list, np.ndarray)) or len(labels) != _BATCH_EXAMPLES:
        raise ValueError(f"{name} has no 10000 'labels'")
    if not all(isinstance(label, (int, np.integer)) and 0 <= label <= 9 for label in labels):
        raise ValueError(f"{name}: 'labels' are not whole numbers from 0 to 9")
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.uint8)


def _class_names(content: object) -> tuple[str, ...]:
    names = _text_keys(content, _META).get("label_names")
    if not isinstance(names, list) or len(names) != len(CLASSES):
        raise ValueError(f"{_META} has no 10 'label_names'")
    return tuple(_text(name) for name in names)


def _text_keys(content: object, name: str) -> dict:
    if not isinstance(content, dict):
        raise ValueError(f"{name} holds no dictionary")
    return {_text(key): value for key, value in content.items()}


def _text(value: object) -> str:
    """Return a name as text. Python 2 wrote names as bytes, Python 3 as text."""
    if not isinstance(value, (bytes, str)):
        raise ValueError(f"a name is {type(value).__name__}")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _not_cifar10(source: Path, why: str) -> NotThisDataSet:
    return NotThisDataSet(
        f"'{source}' is not CIFAR-10 ({why}); give the official {ARCHIVE} or the folder {FOLDER} from inside it"
    )


class Cifar10(ImageDataSet):
    name = "cifar10"
    title = "CIFAR-10"
    archive = ARCHIVE
    download = Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    )
    wanted = f"{ARCHIVE}, the folder {FOLDER}"

    def candidates(self, place: Path) -> Iterator[Path]:
        return candidates(place)

    def read(self, source: Path | None, settings: DataSettings) -> Contents:
        assert source is not None  # it is always read from files
        return read(source)


CIFAR10 = Cifar10()
