"""Read the files of CIFAR-10, CIFAR-100, and MNIST and sets in its form.

CIFAR's batches are pickles. Their contents are checked by structure (members, shapes, labels, counts), because sound
copies differ in their bytes. Nothing in a pickle is ever run.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, cast

import numpy as np

from ps_cluster.config.datasets import Contents, NotThisDataSet
from ps_cluster.data.sets import IDX_BEGINNING, MNIST_ROWS, BatchFile, Cifar, MnistForm, idx_file
from ps_cluster.files.reading import open_regular, read_bytes
from ps_cluster.files.values import Malformed

_MEMBER_BYTES_MAX = 2**28  # the largest, that of CIFAR-100's training images, has 156 MB
_ARCHIVE_BYTES_MAX = 2**29  # decompressed; either has 186 MB
_MEMBERS_MAX = 1000  # CIFAR-10 has 9
_CHUNK_BYTES = 2**20


def read_cifar(kind: Cifar, source: Path) -> Contents:
    """Return what an archive or a folder holds (`Cifar.read`)."""
    try:
        return _cifar(kind, source)
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, pickle.UnpicklingError) as error:
        raise NotThisDataSet(
            f"'{source}' is not {kind.title} ({_one_line(error)}); give the official {kind.archive} or the folder "
            f"{kind.folder} from inside it"
        ) from error


def _cifar(kind: Cifar, source: Path) -> Contents:
    batches = {batch.name: batch for batch in kind.batches}
    names, found = kind.spec.classes, {}
    for name, content in _members(source, (*batches, kind.names_file)):
        try:
            read = load_plain(content)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{name}: {_one_line(error)}") from error
        if not isinstance(read, dict):
            raise ValueError(f"{name} holds no dictionary")
        fields = {_text(key): value for key, value in read.items()}
        if name == kind.names_file:
            told, count = fields.get(kind.names_key), len(kind.spec.classes)
            if not isinstance(told, list) or len(told) != count:
                raise ValueError(f"{name} has no {count} '{kind.names_key}'")
            names = tuple(map(_text, told))
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


def _members(source: Path, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each wanted file of a folder or an archive, in any order."""
    if source.is_dir():
        for name in wanted:
            if (source / name).is_file():
                _check_size(name, (source / name).stat().st_size)
                yield name, read_bytes(source / name, _MEMBER_BYTES_MAX)
        return
    with open_regular(source) as file, gzip.open(file) as unpacked:
        # Read as a stream: nothing is unpacked onto the disk, and links in the archive are not followed.
        yield from _tar_members(_Bounded(unpacked), wanted)


def _tar_members(stream: _Bounded, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
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
        raise ValueError(f"{name} has {size} bytes")


def _pixels(fields: Mapping[str, object], batch: BatchFile) -> np.ndarray:
    """Return images uint8 [rows, 32, 32, 3]."""
    pixels = fields.get("data")
    if not isinstance(pixels, PickledArray):
        raise ValueError(f"{batch.name} has no array 'data'")
    pixels = pixels.to_numpy()
    if pixels.dtype != np.uint8 or pixels.shape != (batch.rows, 3072):
        wanted = f"uint8 [{batch.rows}, 3072]"
        raise ValueError(f"{batch.name}: 'data' is {pixels.dtype} {list(pixels.shape)} instead of {wanted}")
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _labels(fields: Mapping[str, object], key: str, batch: BatchFile, classes: int) -> np.ndarray:
    """Return labels uint8 [rows]."""
    labels = fields.get(key)
    labels = labels.to_numpy().tolist() if isinstance(labels, PickledArray) else labels
    if not isinstance(labels, list) or len(labels) != batch.rows:
        raise ValueError(f"{batch.name} has no {batch.rows} '{key}'")
    if not all(isinstance(label, int) and 0 <= label < classes for label in labels):
        raise ValueError(f"{batch.name}: '{key}' are not whole numbers from 0 to {classes - 1}")
    return np.array(labels, np.uint8)


def _text(value: object) -> str:
    """Return a name as text. Python 2 wrote names as bytes, Python 3 as text."""
    if not isinstance(value, (bytes, str)):
        raise ValueError(f"a name is {type(value).__name__}")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


# Read pickles of plain data and numpy arrays without running anything in them.
#
# Even numpy's own `dtype.__setstate__` trusts its input (a crafted one turns raw bytes into object pointers). So the
# names that a pickled array refers to map to the inert stand-ins below, never to numpy.

MOST_OPERATIONS = 500_000  # a batch of CIFAR-10 has 30,108, the training images of CIFAR-100 some 250,000
MOST_TUPLES = 1000  # a batch has 5; the hash of deeply nested tuples would overflow the stack

_WHOLE_NUMBERS = re.compile(r"[iu][1248]")


class PickledArray:
    """An array as a pickle describes it. Nothing is trusted before `to_numpy`."""

    _state: tuple[Any, ...] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def to_numpy(self) -> np.ndarray:
        """Return the array, read-only, of any integer type and shape.

        Raises:
            ValueError: another type, or contents that don't fit the shape.
        """
        try:
            _, shape, dtype, column_order, content = self._state or ()
            order: Literal["F", "C"] = "F" if column_order else "C"
            array: np.ndarray = np.frombuffer(content, _PickledDtype.to_numpy(dtype)).reshape(shape, order=order)
            return array
        except (TypeError, AttributeError, MemoryError) as error:
            raise ValueError(f"malformed array ({error})") from error


class _PickledDtype:
    _byte_order = "|"

    def __init__(self, code: str | bytes, *_: object) -> None:
        self._code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self._byte_order = order.decode("ascii") if isinstance(order, bytes) else order

    def to_numpy(self) -> np.dtype:
        if not _WHOLE_NUMBERS.fullmatch(self._code) or self._byte_order not in ("<", ">", "=", "|"):
            raise ValueError(f"array of type {self._code!r}")
        return np.dtype(self._code).newbyteorder(cast(Literal["<", ">", "=", "|"], self._byte_order))


def _reconstruct(*_: object) -> PickledArray:
    return PickledArray()


_STAND_INS = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # written by numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # written by numpy 2
}


class _Refused(pickle.UnpicklingError):
    """The pickle is sound but asks for more than plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes):
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._bytes_left = len(content)

    def _encode(self, text: str, encoding: str) -> bytes:
        """Return bytes that Python 3 wrote for Python 2. Refuse more in all than the pickle has: texts can repeat."""
        if encoding != "latin1":
            raise ValueError(f"bytes in encoding {encoding!r}")
        self._bytes_left -= len(text)
        if self._bytes_left < 0:
            raise Malformed("more bytes than it has itself")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        if (module, name) not in _STAND_INS:
            raise _Refused(f"its pickle asks for {module}.{name}, which data does not need")
        return _STAND_INS[module, name]


def load_plain(content: bytes) -> object:
    """Unpickle containers, numbers, text and bytes; arrays become `PickledArray`, and Python 2's text becomes bytes.

    Raises:
        pickle.UnpicklingError: not a pickle, damaged, or it asks for anything else.
    """
    try:
        _check_operations(content)
        return _PlainUnpickler(content).load()
    except _Refused:
        raise
    except Exception as error:  # a damaged pickle can raise almost any exception
        raise pickle.UnpicklingError(f"damaged pickle, {type(error).__name__}: {error}") from error


def _check_operations(content: bytes) -> None:
    """Limit what the unpickler would trust: places in its memo, for which it allocates memory, and lengths.

    Raises:
        ValueError: an operation exceeds a limit, or is incomplete.
    """
    tuples = 0
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if number >= MOST_OPERATIONS:
            raise Malformed(f"more than {MOST_OPERATIONS:,} operations")
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= (argument or 0) < MOST_OPERATIONS:
            raise Malformed("a place in its memo that no data needs")
        if operation.name == "FRAME" and (argument or 0) > len(content):
            raise Malformed("a frame that is longer than all of it")
        if operation.name.startswith(("TUPLE", "FROZENSET")):
            tuples += 1
            if tuples > MOST_TUPLES:
                raise Malformed(f"more than {MOST_TUPLES:,} tuples")


# Read MNIST and sets in its form.

_HEADER_BYTES_MAX = 10_000


def read_mnist(kind: MnistForm, source: Path) -> Contents:
    """Return what four IDX files or Keras's archive hold (`MnistForm.read`)."""
    try:
        arrays = _from_folder(source) if source.is_dir() else _from_archive(source)
        _check(kind, arrays["train"]["target"])
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, ValueError) as error:
        raise NotThisDataSet(f"'{source}' is not {kind.title} ({_one_line(error)}); give {kind.wanted}") from error
    return Contents.of(arrays["train"], arrays["test"], classes=kind.classes)


def _check(kind: MnistForm, labels: np.ndarray) -> None:
    counts = np.bincount(labels, minlength=10)
    if len(counts) > 10:
        raise ValueError(f"a label is {int(labels.max())}")
    if (counts == counts[0]).all() != kind.in_equal_parts:
        equally = "not equally many" if kind.in_equal_parts else "equally many"
        raise ValueError(f"its classes have {equally} images")


def _from_folder(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for split, rows in MNIST_ROWS.items():
        files = idx_file(folder, split, "images", 3), idx_file(folder, split, "labels", 1)
        if None in files:
            kind = "images-idx3" if files[0] is None else "labels-idx1"
            raise ValueError(f"it lacks {IDX_BEGINNING[split]}-{kind}-ubyte")
        images, labels = (read_idx(file, shape) for file, shape in zip(files, ((rows, 28, 28), (rows,))))  # type: ignore[arg-type]
        arrays[split] = {"image": images[..., None], "target": labels}
    return arrays


def _from_archive(path: Path) -> dict[str, dict[str, np.ndarray]]:
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        return {
            split: {
                "image": _array(archive, f"x_{split}.npy", (rows, 28, 28))[..., None],
                "target": _array(archive, f"y_{split}.npy", (rows,)),
            }
            for split, rows in MNIST_ROWS.items()
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
            return _read_idx(stream, shape)  # type: ignore[arg-type]


def _read_idx(stream: BinaryIO, shape: tuple[int, ...]) -> np.ndarray:
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
