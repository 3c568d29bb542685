"""Read CIFAR-10 and CIFAR-100: photographs of 32x32 pixels (Krizhevsky 2009, Learning Multiple Layers of Features).

Users have either the official archive for Python or the folder inside it. The batches are pickles. The structure of the
contents is checked (files, shapes, labels, counts), but no checksum, because sound copies differ in their bytes.
"""

from __future__ import annotations

import gzip
import os
import pickle
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np

from ps_cluster.config.datasets import Contents, Download, ImageDataSet, ImageSettings, NotThisDataSet
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.data.plain_pickles import PickledArray, load_plain
from ps_cluster.files.reading import open_regular, read_bytes
from ps_cluster.files.values import reason

_MEMBER_BYTES_MAX = 2**28  # the largest file, with the training images of CIFAR-100, has 156 MB
_ARCHIVE_BYTES_MAX = 2**29  # decompressed; each of the two archives has 186 MB
_MEMBERS_MAX = 1000  # CIFAR-10 has 9
_CHUNK_BYTES = 2**20


class ImagesFile(NamedTuple):
    """One of CIFAR's files of images. CIFAR calls such a file a batch. `rows`: the number of images in the file."""

    name: str
    split: str
    rows: int


class Cifar(ImageDataSet[ImageSettings]):
    """A data set in the file format of CIFAR."""

    folder = ""  # the name of the folder in the archive
    batches: tuple[ImagesFile, ...] = ()  # the files of images in that folder, in order
    names_file = ""  # the file in that folder with the names of the classes
    labels_key, names_key = "labels", "label_names"  # the keys of labels and names in the pickles
    spec: ExampleSpec  # the description of the examples; its names of classes are used if a copy has no names

    def candidates(self, place: Path) -> Iterator[Path]:
        """Yield the paths that may be this data set, best first, without opening any file.

        If `place` is a file, it is the only path. If `place` is a folder, the paths lead to folders and archives in it.
        """
        if os.path.isfile(place):  # not Path.is_file, which raises for an unreadable folder
            yield place
            return
        # Keras unpacks into a folder of its own, and has renamed the archive twice.
        for name in (".", self.folder, f"{self.folder}-target/{self.folder}"):
            if any(os.path.isfile(place / name / batch.name) for batch in self.batches):
                yield place / name
        for name in dict.fromkeys((self.archive, f"{self.folder}.tar.gz", f"{self.folder}-target_archive")):
            if os.path.isfile(place / name):
                yield place / name

    def read(self, source: Path | None, settings: ImageSettings) -> Contents:
        """Return images uint8 [N, 32, 32, 3] and labels uint8 [N] from an archive or folder, in the order of `batches`.

        Raises NotThisDataSet if the source is damaged or incomplete, or a pickle asks for more than plain data.
        """
        assert source is not None  # it is always read from files
        try:
            return _read_batches(self, source)
        except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, pickle.UnpicklingError) as error:
            raise NotThisDataSet(
                f"'{source}' is not {self.title} ({reason(error)}); give the official {self.archive} or the folder "
                f"{self.folder} from inside it"
            ) from error


# The published mean and standard deviation of each channel of the training set, in units of pixels (0..255).
PIXEL_MEAN = (0.4914 * 255, 0.4822 * 255, 0.4465 * 255)
PIXEL_STD = (0.2470 * 255, 0.2435 * 255, 0.2616 * 255)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPEC = ExampleSpec(
    {"image": ArrayField("uint8", (32, 32, 3), PIXEL_MEAN, PIXEL_STD)}, ArrayField("uint8", ()), classes=CLASSES
)


class Cifar10(Cifar):
    """60,000 photographs in ten classes."""

    name = "cifar10"
    title = "CIFAR-10"
    folder = "cifar-10-batches-py"
    archive = "cifar-10-python.tar.gz"
    wanted = f"{archive}, the folder {folder}"
    # The checksum is also in Keras (datasets/cifar10.py, 3.15) and in torchvision
    # (prototype/datasets/_builtin/cifar.py, 0b02d42). Both print this size when they download.
    downloads = (
        Download(
            f"https://www.cs.toronto.edu/~kriz/{archive}",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            170_498_071,
        ),
    )
    batches = (
        *(ImagesFile(f"data_batch_{number}", "train", 10_000) for number in range(1, 6)),
        ImagesFile("test_batch", "test", 10_000),
    )
    names_file = "batches.meta"
    spec = SPEC


def _numbered(count: int) -> ExampleSpec:
    """Return the description of examples whose classes are named by their numbers.

    It is used for copies of the data set that lack the file of names.
    """
    return ExampleSpec(
        {"image": ArrayField("uint8", (32, 32, 3))}, ArrayField("uint8", ()), classes=tuple(map(str, range(count)))
    )


class Cifar100(Cifar):
    """60,000 photographs in 100 classes, which belong to 20 coarse classes."""

    name = "cifar100"
    title = "CIFAR-100"
    folder = "cifar-100-python"
    archive = "cifar-100-python.tar.gz"
    wanted = f"{archive}, the folder {folder}"
    # The checksum is also in Keras (datasets/cifar100.py, 3.15) and in torchvision
    # (prototype/datasets/_builtin/cifar.py, 0b02d42). Both print this size when they download.
    downloads = (
        Download(
            f"https://www.cs.toronto.edu/~kriz/{archive}",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            169_001_437,
        ),
    )
    batches = (ImagesFile("train", "train", 50_000), ImagesFile("test", "test", 10_000))
    names_file = "meta"
    labels_key, names_key = "fine_labels", "fine_label_names"
    spec = _numbered(100)
    recipes = {"airbench": {"training": {"epochs": 6.5}, "schedule": {"image_scales": []}}}


class Cifar100Coarse(Cifar100):
    name = "cifar100_coarse"
    title = "CIFAR-100 with coarse labels"
    labels_key, names_key = "coarse_labels", "coarse_label_names"
    spec = _numbered(20)


def _read_batches(kind: Cifar, source: Path) -> Contents:
    batches = {batch.name: batch for batch in kind.batches}
    names, found = kind.spec.classes, {}
    for name, content in _wanted_files(source, (*batches, kind.names_file)):
        try:
            read = load_plain(content)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{name}: {reason(error)}") from error
        if not isinstance(read, dict):
            raise ValueError(f"{name} holds no dictionary")
        fields = {_decode_name(key): value for key, value in read.items()}
        if name == kind.names_file:
            listed, count = fields.get(kind.names_key), len(kind.spec.classes)
            if not isinstance(listed, list) or len(listed) != count:
                raise ValueError(f"{name} has no list '{kind.names_key}' of {count} names")
            names = tuple(map(_decode_name, listed))
        else:
            batch = batches[name]
            found[name] = _pixels(fields, batch), _labels(fields, kind.labels_key, batch, len(names))
    if missing := [name for name in batches if name not in found]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    arrays = {}
    for split in ("train", "test"):
        parts = [found[batch.name] for batch in kind.batches if batch.split == split]
        images, labels = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        arrays[split] = {"image": images, "target": labels}
    return Contents(replace(kind.spec, classes=names), arrays)


def _wanted_files(source: Path, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each wanted file of a folder or an archive, in any order."""
    if source.is_dir():
        for name in wanted:
            if (source / name).is_file():
                _check_size(name, (source / name).stat().st_size)
                yield name, read_bytes(source / name, _MEMBER_BYTES_MAX)
        return
    with open_regular(source) as file, gzip.open(file) as unpacked:
        # Read as a stream: nothing is unpacked onto the disk, and links in the archive are not followed.
        yield from _tar_members(_BoundedStream(unpacked), wanted)


def _tar_members(stream: _BoundedStream, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each wanted plain file of a tar archive. Everything else is skipped unread.

    Tar's extended headers are skipped too, because no wanted file has one. The module tarfile would read such a header
    completely, however long it is.
    """
    for count in range(_MEMBERS_MAX):
        try:
            member = tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError) as error:  # type: ignore[attr-defined]  # not in its stubs
            if not count:
                raise ValueError("it is empty") from error
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
    while stream.read(_CHUNK_BYTES):  # gzip checks its checksum only at the very end
        pass


class _BoundedStream:
    """A stream that raises an error if it yields more bytes than a sound archive has."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile):
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
        raise ValueError(f"{name} has {size:,} bytes, more than {_MEMBER_BYTES_MAX:,}")


def _pixels(fields: Mapping[str, object], batch: ImagesFile) -> np.ndarray:
    """Return the images of a batch file, uint8 [rows, 32, 32, 3]."""
    pixels = fields.get("data")
    if not isinstance(pixels, PickledArray):
        raise ValueError(f"{batch.name} has no array 'data'")
    pixels = pixels.to_numpy()
    if pixels.dtype != np.uint8 or pixels.shape != (batch.rows, 3072):
        wanted = f"uint8 [{batch.rows}, 3072]"
        raise ValueError(f"{batch.name}: 'data' is {pixels.dtype} {list(pixels.shape)} instead of {wanted}")
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _labels(fields: Mapping[str, object], key: str, batch: ImagesFile, classes: int) -> np.ndarray:
    """Return the labels of a batch file, uint8 [rows]."""
    labels = fields.get(key)
    labels = labels.to_numpy().tolist() if isinstance(labels, PickledArray) else labels
    if not isinstance(labels, list) or len(labels) != batch.rows:
        raise ValueError(f"{batch.name} has no list '{key}' of {batch.rows} labels")
    if not all(isinstance(label, int) and 0 <= label < classes for label in labels):
        raise ValueError(f"{batch.name}: '{key}' are not whole numbers from 0 to {classes - 1}")
    return np.array(labels, np.uint8)


def _decode_name(value: object) -> str:
    """Return a name as text. Python 2 writes names as bytes, Python 3 as text."""
    if not isinstance(value, (bytes, str)):
        raise ValueError(f"a name is no text, but of type {type(value).__name__}")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
