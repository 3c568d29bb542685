"""Pack a data set into raw files that every process maps without a copy: one folder, five files, complete or absent."""

from __future__ import annotations

import contextlib
import errno
import shutil
import stat
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ps_cluster.catalogue.examples import ExampleSpec, Field
from ps_cluster.data.pixels import PIXEL_MEAN, PIXEL_STD
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import read_json
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.run.rows.dataset import DatasetPointer, Manifest

MANIFEST = "dataset.json"
TRAIN_IMAGES = "train_images.u8"  # raw uint8 [N, 32, 32, 3], C order
TRAIN_LABELS = "train_labels.u8"  # raw uint8 [N]
TEST_IMAGES = "test_images.u8"
TEST_LABELS = "test_labels.u8"

IMAGE_SHAPE = (32, 32, 3)
FORMAT = 1
MOST_MANIFEST_BYTES = 2**20
KINDS = {"cifar10": "real", "synthetic": "synthetic"}

_IMAGE_BYTES = 32 * 32 * 3
_ABANDONED_AFTER_S = 3600.0  # packing takes seconds: an older temporary folder was left by a killed process

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Train images uint8 [N, 32, 32, 3] and labels uint8 [N], then test images uint8 [M, 32, 32, 3], labels uint8 [M]."""


@dataclass(frozen=True)
class PackedDataset:
    """A validated folder of packed images. `directory` is absolute, so that other processes can use it."""

    name: str  # "cifar10" | "synthetic"
    kind: str  # "real" | "synthetic"
    directory: Path
    train_examples: int
    test_examples: int
    classes: tuple[str, ...]
    source: str = ""  # archive or folder that it was packed from; "" if it was generated
    validation_examples: int = 0  # the last of the packed training images; `train_examples` excludes them

    @property
    def spec(self) -> ExampleSpec:
        """What a network is given of each example, and what it shall return."""
        image = Field("uint8", IMAGE_SHAPE, PIXEL_MEAN, PIXEL_STD)
        return ExampleSpec({"image": image}, target=Field("uint8", ()), classes=self.classes)

    def holding_out(self, validation_examples: int) -> PackedDataset:
        """Return the same data set with this many training images held out for choosing.

        Raises:
            UserError: nothing would be left to train on.
        """
        everything = self.train_examples + self.validation_examples
        if validation_examples >= everything:
            raise UserError(
                f"evaluation.validation_examples: got {validation_examples}: the data set has {everything} training "
                "images: hold out fewer"
            )
        left = everything - validation_examples
        return replace(self, train_examples=left, validation_examples=validation_examples)

    def images(self, split: str) -> np.memmap:
        """Return the images of `split` ("train", "validation" or "test"): read-only uint8 [N, 32, 32, 3]."""
        file_name = TEST_IMAGES if split == "test" else TRAIN_IMAGES
        return np.memmap(self.directory / file_name, np.uint8, mode="r").reshape(-1, *IMAGE_SHAPE)[self._part(split)]

    def labels(self, split: str) -> np.memmap:
        """Return the labels of `split` ("train", "validation" or "test"): read-only uint8 [N], indexing `classes`."""
        file_name = TEST_LABELS if split == "test" else TRAIN_LABELS
        return np.memmap(self.directory / file_name, np.uint8, mode="r")[self._part(split)]

    def _part(self, split: str) -> slice:
        """Return the examples of its files that a split has."""
        first = slice(self.train_examples)
        return {"train": first, "validation": slice(self.train_examples, None), "test": slice(None)}[split]


def load_packed(directory: Path) -> PackedDataset:
    """Open a packed folder without reading the images.

    Raises:
        UserError: the manifest is missing or malformed, or a file's size differs from the manifest.
    """
    directory = Path(directory).resolve()
    try:
        manifest = read_json(directory / MANIFEST, Manifest, MOST_MANIFEST_BYTES)
        _check_sizes(directory, manifest)
    except OSError as error:
        raise _unusable(directory, f"{Path(error.filename or MANIFEST).name}: {error.strerror}") from error
    except (UserError, Malformed) as error:
        raise _unusable(directory, f"{error}") from error
    train, test, classes = manifest.train_examples, manifest.test_examples, tuple(manifest.classes)
    dataset = PackedDataset(manifest.name, manifest.kind, directory, train, test, classes, manifest.source)
    highest = max(int(dataset.labels(split).max()) for split in ("train", "test"))
    if highest >= len(classes):
        raise _unusable(directory, f"a label is {highest}, of {len(classes)} classes")
    return dataset


def write_pointer(file: Path, dataset: PackedDataset) -> None:
    """Write to `file` which packed folder is used, for other processes of this machine."""
    pointer = DatasetPointer(name=dataset.name, kind=dataset.kind, directory=str(dataset.directory))
    write_json(file, pointer.model_dump())


def load_pointed(file: Path) -> PackedDataset:
    """Open the data set that `write_pointer` wrote to `file`. Raises UserError if either is missing or damaged."""
    try:
        return load_packed(Path(read_json(file, DatasetPointer).directory))
    except FileNotFoundError as error:
        raise UserError(f"'{file}' is not there to say where the data set is") from error


def write_packed(
    directory: Path, name: str, classes: tuple[str, ...], arrays: Arrays, source: str = ""
) -> PackedDataset:
    """Pack `arrays`, read from `source`, into `directory`, which appears complete or not at all.

    If another process packs the same folder at the same time, the first to finish wins and both use its copy. A damaged
    folder in the way is replaced.

    Raises:
        UserError: the folder cannot be written.
    """
    directory = Path(directory).resolve()
    temporary = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(directory)
        temporary.mkdir()
        try:
            _write_files(temporary, name, classes, arrays, source)
            return _move_into_place(temporary, directory)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise cannot_write(directory, error) from error


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the error for a cache that can't write `path`."""
    return UserError(
        f"cache_dir: cannot write '{path}' ({error.strerror or error}); "
        "set PS_CLUSTER_CACHE to a folder with 400 MB of free space that you may write to"
    )


def _sizes(train_examples: int, test_examples: int) -> dict[str, int]:
    return {
        TRAIN_IMAGES: train_examples * _IMAGE_BYTES,
        TRAIN_LABELS: train_examples,
        TEST_IMAGES: test_examples * _IMAGE_BYTES,
        TEST_LABELS: test_examples,
    }


def _check_sizes(directory: Path, manifest: Manifest) -> None:
    if manifest.format != FORMAT:
        raise Malformed(f"format {manifest.format} instead of {FORMAT}")
    if KINDS[manifest.name] != manifest.kind:
        raise Malformed(f"there is no {manifest.kind!r} data set {manifest.name!r}")
    if manifest.bytes != _sizes(manifest.train_examples, manifest.test_examples):
        raise Malformed("bytes do not fit the numbers of examples")
    for file_name, size in manifest.bytes.items():
        status = (directory / file_name).stat()
        if not stat.S_ISREG(status.st_mode):
            raise Malformed(f"{file_name} is no regular file")
        if status.st_size != size:
            raise Malformed(f"promises {size} bytes in {file_name}, which has {status.st_size}")


def _write_files(directory: Path, name: str, classes: tuple[str, ...], arrays: Arrays, source: str) -> None:
    for file_name, array in zip((TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS), arrays, strict=True):
        if array.dtype != np.uint8 or array.shape[1:] not in (IMAGE_SHAPE, ()):
            raise ValueError(f"{file_name}: cannot pack {array.dtype} {list(array.shape)}")
        array.tofile(directory / file_name)
    train_examples, test_examples = len(arrays[1]), len(arrays[3])
    manifest = Manifest(
        format=FORMAT,
        name=name,
        kind=KINDS[name],
        train_examples=train_examples,
        test_examples=test_examples,
        classes=list(classes),
        source=source,
        bytes=_sizes(train_examples, test_examples),
    )
    write_whole(directory / MANIFEST, manifest.model_dump_json(indent=2) + "\n")


def _move_into_place(temporary: Path, directory: Path) -> PackedDataset:
    for attempt in range(3):
        try:
            temporary.rename(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        # Ours, the one of a faster process, or a damaged one that was there before.
        try:
            return load_packed(directory)
        except UserError:
            if attempt == 2:
                raise
            damaged = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")
            with contextlib.suppress(FileNotFoundError):
                directory.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)


def _remove_abandoned(directory: Path) -> None:
    for left_over in directory.parent.glob(f".{directory.name}.*.tmp"):
        try:
            age_s = time.time() - left_over.stat().st_mtime
        except FileNotFoundError:
            continue
        if age_s > _ABANDONED_AFTER_S:
            shutil.rmtree(left_over, ignore_errors=True)


def _unusable(directory: Path, why: str) -> UserError:
    return UserError(f"dataset: '{directory}' is no usable packed data set ({why}); delete that folder and run again")
